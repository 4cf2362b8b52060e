"""``hdet doctor``: what this machine offers, and whether replicas can diverge on it."""

from __future__ import annotations

from typing import Annotated

import typer

from hdet.cli.show import console

__all__ = ["doctor"]


def doctor(
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the other ranks.")] = 60.0,
) -> None:
    """Say what this machine offers, and find out whether replicas can diverge on it."""
    from hdet.demos.doctor import doctor as examine

    if not examine(console(), timeout=timeout):
        raise typer.Exit(1)
