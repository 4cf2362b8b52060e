"""What SECURITY.md promises of the sources; tests/unit/report has what it promises of the page."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

FILES = sorted((ROOT / "src").rglob("*.py"))
#: Modules that run what they read, or ask the network.
FORBIDDEN = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "urllib.request", "requests"}


def name_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Attribute, ast.Name)) else ""


def found(text: str) -> Iterator[str]:
    """Every way in which a file would run what it reads, or ask the network."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (name for name in named if {name, name.partition(".")[0]} & FORBIDDEN)
        elif isinstance(node, ast.Call):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            name = name_of(node.func)
            if name == "torch.load" and given.get("weights_only") != "True":
                yield "torch.load without weights_only=True"
            if name in ("np.load", "numpy.load") and given.get("allow_pickle") != "False":
                yield f"{name} without allow_pickle=False"
            if name in ("eval", "exec"):
                yield name


def test_what_is_looked_for_is_found() -> None:
    for text, what in [
        ("import pickle", ["pickle"]),
        ("from urllib.request import urlopen", ["urllib.request"]),
        ("torch.load(path)", ["torch.load without weights_only=True"]),
        ("torch.load(path, weights_only=False)", ["torch.load without weights_only=True"]),
        ("np.load(path)", ["np.load without allow_pickle=False"]),
        ("eval(text)", ["eval"]),
        ("model.eval(); torch.load(path, weights_only=True)", []),
    ]:
        assert list(found(text)) == what


def test_nothing_that_is_read_is_run_and_nothing_is_asked_of_the_network() -> None:
    told = {
        str(Path(path).relative_to(ROOT)): list(found(path.read_text(encoding="utf-8"))) for path in FILES
    }
    assert {path: what for path, what in told.items() if what} == {}
