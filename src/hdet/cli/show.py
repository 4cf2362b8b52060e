"""What commands show: progress, plain errors, JSON that a person can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

__all__ = [
    *("as_json", "as_line", "console", "evidence_folder", "histories", "plain_errors", "progress", "stopped"),
]


def console() -> Console:
    """The terminal, or whatever stands in for it."""
    from rich.console import Console

    return Console()


def progress(console: Console, status: Status) -> Callable[[str], None]:
    """Where a status line cannot be drawn anew, a log must still show where it stands."""
    return status.update if console.is_terminal else partial(console.print, markup=False, highlight=False)


def as_json(result: object) -> str:
    """Indented, with every list of plain values on one line. No string of JSON holds a line break."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), text) + "\n"


def as_line(told: object) -> str:
    """One line, for scripts."""
    return json.dumps(told, ensure_ascii=False)


def histories(given: Sequence[Path]) -> list[Path]:
    """The histories that are meant: files as they are, of a folder all that it holds."""
    found: list[Path] = []
    for path in given:
        held = sorted(path.glob("**/*.jsonl")) if path.is_dir() else [path]
        if not path.exists():
            raise typer.BadParameter(
                f"RUN must be a history or a folder with some, and {path} does not exist"
            )
        if not held:
            raise typer.BadParameter(
                f"RUN must be a history or a folder with some, and {path} holds no .jsonl"
            )
        found += held
    return found


@contextmanager
def stopped(how_to_go_on: str) -> Iterator[None]:
    """Ctrl-C ends a command with how to go on, and the status that shells give it."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"hdet: stopped; {how_to_go_on}", err=True)
        raise typer.Exit(130) from None


def evidence_folder() -> Path:
    """Where results go: beside the documents that quote them, if these are here."""
    evidence = Path("docs/evidence")
    return evidence if evidence.is_dir() else Path("runs")


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a user can mend, or what a rank already said in full, needs no traceback of ours."""
    try:
        yield
    except (TimeoutError, ModuleNotFoundError) as error:
        typer.echo(f"hdet: {error}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise typer.BadParameter(
            f"{error.filename} must be a file that can be used: {error.strerror}"
        ) from error
    except RuntimeError as error:
        if type(error).__name__ != "ReplicaError":  # by its name: torch need not be imported to be told from
            raise
        typer.echo(f"hdet: {error}", err=True)
        raise typer.Exit(1) from error
