"""Every command, flag and default, as text: ``python -m tests.unit.cli.surface`` writes the listing again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from hdet.cli import app

LISTING = Path(__file__).with_name("surface.txt")


def surface() -> str:
    """A command a paragraph, a parameter a line."""
    return "\n".join(_lines("hdet", typer.main.get_command(app))) + "\n"


def _lines(path: str, command: Any) -> Iterator[str]:
    yield f"{path}: {' '.join((command.help or '').split())}"
    for parameter in command.params:
        if parameter.name not in ("install_completion", "show_completion"):  # these are typer's
            yield f"  {_parameter(parameter)}"
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield ""
        yield from _lines(f"{path} {name}", child)


def _parameter(parameter: Any) -> str:
    if parameter.required:
        return f"{parameter.metavar or parameter.name} (needed): {parameter.help}"
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    default = getattr(default, "value", default)
    return f"{'/'.join(parameter.opts)} = {default}: {parameter.help}"


if __name__ == "__main__":
    LISTING.write_text(surface(), encoding="utf-8")
