"""``hdet find``: the learning rate of your model, from a short run."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdet.cli.show import console, stopped

if TYPE_CHECKING:
    from hdet.finder import Found

__all__ = ["find"]


def find(
    build: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:BUILD",
            help="A function that returns model, optimizer, loss (from a batch) and loader: a module of this "
            "folder or an installed one, or a file (train.py:build).",
            show_default=False,
        ),
    ],
    steps: Annotated[int, typer.Option(min=40, help="How long the search may train.")] = 400,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The schedule, for hdet.replay.")
    ] = Path("schedule.json"),
) -> None:
    """Find a learning rate: train for a short while, and say which rate that led to."""
    made = _made(build)
    from hdet.finder import find as search

    screen = console()
    with stopped("nothing was written: run it again"), screen.status("searching") as status:

        def on_step(step: int) -> None:
            if screen.is_terminal:
                status.update(f"step {step} of {steps}")
            elif step % max(1, steps // 10) == 0:
                typer.echo(f"step {step} of {steps}", err=True)

        try:
            found = search(*made, steps=steps, on_step=on_step)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="MODULE:BUILD") from error
    found.save(output)
    for line in _told(found, output):
        typer.echo(line)


def _made(build: str) -> Any:
    """What the user's function returns."""
    where, colon, name = build.rpartition(":")
    if not (colon and where and name):
        raise typer.BadParameter(f"must be MODULE:BUILD, got {build!r}", param_hint="MODULE:BUILD")
    try:
        module = _imported(where)
        function = getattr(module, name)
    except (ImportError, AttributeError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:BUILD") from error
    made = function()
    if not isinstance(made, tuple) or len(made) != 4:
        raise typer.BadParameter(
            f"{build} must return (model, optimizer, loss, loader), got {type(made).__name__}"
            + (f" of {len(made)}" if isinstance(made, tuple) else ""),
            param_hint="MODULE:BUILD",
        )
    return made


def _imported(where: str) -> Any:
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return import_module(where)
    path = Path(where)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _told(found: Found, output: Path) -> list[str]:
    others = "".join(f", {lr:.3g}" for lr in found.lr[1:])
    lines = [
        f"learning rate  {found.lr[0]:.3g}{others}  (from {found.lowest:.3g} to {found.highest:.3g} in the "
        "second half of the search)",
        f"held-out loss  {found.loss_before:.4g} -> {found.loss_after:.4g} ± {found.error:.2g} "
        f"in {found.steps} steps",
        f'schedule       {output}, for hdet.replay(optimizer, "{output}")',
    ]
    if not found.learnt:
        lines.append("Nothing was learnt beyond the error: this rate says nothing. Try more --steps.")
    else:
        lines.append(
            f"Right for runs of about {found.steps} steps; hdet.AutoLR finds that of a longer run as it "
            "trains."
        )
    return lines
