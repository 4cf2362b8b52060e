"""What a user got wrong, in one line with the mend, and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

__all__ = ["OneLineErrors"]

# Newer versions of typer bring click inside, older ones import it: either way this is its base.
_ClickException: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)


class OneLineErrors(TyperGroup):
    """A group of commands that says what is wrong in one line."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command, and end the process unless it is not to."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        except _ClickException as error:
            if type(error).__name__ == "NoArgsIsHelpError":  # the help itself, which is no error's text
                error.show()  # type: ignore[attr-defined]
                sys.exit(2)
            typer.echo(f"hdet: {_line(error)}", err=True)
            sys.exit(2)
        except typer.Abort:
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _line(error: Any) -> str:
    said = " ".join(str(error.format_message()).split())
    context = getattr(error, "ctx", None)
    where = "hdet" if context is None else context.command_path
    return f"{said.rstrip('.')}; see `{where} --help`"
