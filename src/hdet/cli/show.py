"""What commands show: progress, plain errors, JSON that a person can read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

__all__ = ["as_json", "console", "evidence_folder", "plain_errors", "progress"]


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


def evidence_folder() -> Path:
    """Where results go: beside the documents that quote them, if these are here."""
    evidence = Path("docs/evidence")
    return evidence if evidence.is_dir() else Path("runs")


@contextmanager
def plain_errors() -> Iterator[None]:
    """What a user can mend, or what a rank already said in full, needs no traceback of ours."""
    from hdet.replicas.launch import ReplicaError

    try:
        yield
    except (ReplicaError, TimeoutError, ModuleNotFoundError) as error:
        typer.echo(f"hdet: {error}", err=True)
        raise typer.Exit(1) from error
