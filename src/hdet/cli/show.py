"""What the commands share: how they find histories, show progress, and report errors and Ctrl-C."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["OneLineErrors", "as_line", "console", "histories", "plain_errors", "stopped"]

# Newer versions of typer have their own copy of click, older ones import it; either way this is its base.
_ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
#: Commands of earlier versions, and what replaces them.
_REMOVED = {
    "bench": "python -m benchmarks` in a checkout",
    "reproduce": "python -m benchmarks reproduce` in a checkout",
    "demo-published": "hdet demo`",
}


class OneLineErrors(TyperGroup):
    """Commands whose usage errors are one line that names the help, with exit status 2."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is meant; one that was removed raises and names its replacement."""
        if args[0] in _REMOVED and args[0] not in self.commands:
            raise _ClickException(f"{args[0]} was removed: run `{_REMOVED[args[0]]}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command, and exit the process unless ``standalone_mode`` is False."""
        if not kwargs.get("standalone_mode", True):
            return super().main(*args, **kwargs)
        try:
            code = super().main(*args, **{**kwargs, "standalone_mode": False})
        except _ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                command = error.ctx.command_path if getattr(error, "ctx", None) else "hdet"
                message = " ".join(error.format_message().split()).rstrip(".")
                typer.echo(f"{self.name}: {message}; see `{command} --help`", err=True)
            code = 2
        except typer.Abort:
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


def console() -> Console:
    """The terminal."""
    from rich.console import Console

    return Console()


def histories(given: Sequence[Path], *, may_come: bool = False) -> list[Path]:
    """The files, and every history below a folder; one that does not exist yet only if it ``may_come``."""
    from hdet.report.records import is_history

    found: list[Path] = []
    for path in given:
        inside = [path] if path.is_file() else sorted(path.glob("**/*.jsonl"))
        known = [one for one in inside if is_history(one)]
        if not known and not (may_come and not path.exists()):
            why = "holds none" if path.exists() else "does not exist"
            raise typer.BadParameter(
                f"RUN must be a history or a folder with some, and {path} {why}; give the file that "
                "AutoLR(..., history='run.jsonl') writes"
            )
        found += known or [path]
    return found


@contextmanager
def stopped(what_next: str) -> Iterator[None]:
    """On Ctrl-C, print what to do next and exit with 130, as shells do."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"hdet: stopped; {what_next}", err=True)
        raise typer.Exit(130) from None


@contextmanager
def plain_errors() -> Iterator[None]:
    """No traceback for errors that a user can fix, or that a rank has already printed in full."""
    try:
        yield
    except (TimeoutError, ModuleNotFoundError, RuntimeError) as error:
        # By its name: importing ReplicaError would import torch.
        if isinstance(error, RuntimeError) and type(error).__name__ != "ReplicaError":
            raise
        typer.echo(f"hdet: {error}", err=True)
        raise typer.Exit(1) from error
    except OSError as error:
        if error.filename is None:
            raise
        raise typer.BadParameter(f"{error.filename} must be a usable file: {error.strerror}") from error


def as_line(value: object) -> str:
    """One line of JSON, for scripts."""
    return json.dumps(value, ensure_ascii=False)
