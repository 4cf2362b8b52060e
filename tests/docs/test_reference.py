"""The reference has every public name, once; and every command."""

from __future__ import annotations

import ast
import re
from collections import Counter

import pytest
from typer.main import get_command

import hdet
from hdet.cli import app
from tests import ROOT

PAGES = "\n".join(page.read_text(encoding="utf-8") for page in sorted(ROOT.glob("docs/api/*.md")))
DOCUMENTED = Counter(re.findall(r"^\.\. (?:auto\w+|py:\w+):: (hdet[\w.]*)(?:\(.*\))?$", PAGES, re.MULTILINE))


def test_every_public_name_is_documented_once() -> None:
    assert {name: DOCUMENTED[f"hdet.{name}"] for name in hdet.__all__} == dict.fromkeys(hdet.__all__, 1)


@pytest.mark.parametrize("framework", ["transformers", "accelerate", "lightning"])
def test_every_public_name_of_a_framework_is_documented_once(framework: str) -> None:
    source = (ROOT / f"src/hdet/integrations/{framework}.py").read_text(encoding="utf-8")
    lists = [node for node in ast.parse(source).body if isinstance(node, ast.Assign)]
    names = next(ast.literal_eval(n.value) for n in lists if ast.unparse(n.targets[0]) == "__all__")
    counts = {name: DOCUMENTED[f"hdet.integrations.{framework}.{name}"] for name in names}
    assert counts == dict.fromkeys(names, 1)


def test_every_command_is_documented_and_every_option_of_it() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    page = (ROOT / "docs/api/commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `hdet ([\w-]+)`\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    assert set(sections) == set(commands)
    for name, command in commands.items():
        options = {param.opts[0] for param in command.params if param.param_type_name == "option"} - {
            "--help"
        }
        assert set(re.findall(r"^\| `(--[\w-]+)`", sections[name], re.MULTILINE)) == options, name
