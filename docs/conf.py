"""How ``make docs`` makes a site of these pages, which are written to read well on GitHub, too."""

import re
from pathlib import Path
from typing import Any

import hdet
from hdet import integrations
from hdet.removed import MOVED

# Frameworks are not installed to document what meets them.
integrations.require = lambda package, floor: None  # type: ignore[assignment]
autodoc_mock_imports = ["transformers", "accelerate", "lightning", "torchmetrics"]

project, author, copyright = "hdet", "The hdet maintainers", "The hdet maintainers, Apache-2.0"
version = release = hdet.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns, html_theme, html_title = ["_build"], "furo", f"hdet {release}"
html_static_path, html_css_files, html_js_files = ["_static"], ["site.css"], ["copy.js"]
html_logo = html_favicon = "_static/mark.svg"
pygments_dark_style = "github-dark"
_BRANDED = (
    "color-brand-primary",
    "color-brand-content",
    "color-brand-visited",
    "color-api-name",
    "color-api-pre-name",
)
html_theme_options = {
    f"{mode}_css_variables": dict.fromkeys(_BRANDED, colour)
    for mode, colour in (("light", "#6741c7"), ("dark", "#b49cf5"))
}
html_copy_source = html_show_sourcelink = html_show_sphinx = False
myst_heading_anchors = 4

autodoc_member_order, autodoc_typehints_format = "bysource", "short"
python_use_unqualified_type_names = python_display_short_literal_types = True
maximum_signature_line_length, add_module_names = 80, False
# What others document, and what no page names: shown as it is written.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|collections|contextlib|os|pathlib|accelerate)\..*|Tensor"),
    ("py:.*", r"hdet\.(?!integrations)[a-z_]+\..*"),
]

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((\.\./[^)#\s]*)[^)\s]*\)")


def outside(_: Any, page: str, text: list[str]) -> None:
    """A link that leads out of docs/ becomes a download of that file; to a folder, its name."""

    def inside(link: re.Match[str]) -> str:
        target = (ROOT / "docs" / page).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if target.is_file():
            words = link[1].replace("`", "")
            return f"{{download}}`{words} <{link[2]}>`"
        return f"`{target.relative_to(ROOT)}`"

    text[0] = _LINK.sub(inside, text[0])


def public(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """A public name is documented as ``hdet.Name``, wherever it lives; the others under their modules."""
    name = node.get("reftarget", "").rpartition(".")[2]
    module = "hdet" if name in hdet.__all__ else MOVED.get(name)
    if node.get("refdomain") != "py" or module is None:
        return None
    place = env, node["refdoc"], app.builder
    return env.domains["py"].resolve_xref(*place, "obj", f"{module}.{name}", node, shown)


def setup(app: Any) -> None:
    """Sphinx's own name for where a site is extended."""
    app.connect("source-read", outside)
    app.connect("missing-reference", public)
