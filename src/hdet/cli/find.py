"""``hdet find``: the learning rate of your model, from a short run."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any

import typer

from hdet.cli.show import console, stopped

__all__ = ["find"]


def find(
    build: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:BUILD",
            help="A function that returns model, optimizer, loss (from a batch) and loader: in a file "
            "(train.py:build), in a module of this folder or in an installed one.",
            show_default=False,
        ),
    ],
    steps: Annotated[int, typer.Option(min=4, help="How long the search may train.")] = 400,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The schedule, for hdet.replay.")
    ] = Path("schedule.json"),
) -> None:
    """Find a learning rate by training for a short while."""
    try:
        function = _load(build)
    except (ImportError, AttributeError, FileNotFoundError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="MODULE:BUILD") from error
    built, screen = function(), console()
    with stopped("nothing was written: run it again"), screen.status("searching") as status:

        def on_step(step: int) -> None:
            if screen.is_terminal:
                status.update(f"step {step:>{len(str(steps))}} of {steps}")
            elif step % max(1, steps // 10) == 0:
                typer.echo(f"step {step} of {steps}", err=True)

        try:
            if not isinstance(built, tuple) or len(built) != 4:
                raise TypeError(f"{build} must return (model, optimizer, loss, loader), got {built!r:.80}")
            from hdet.autolr.find import find as search

            found = search(*built, steps=steps, on_step=on_step)
        except (TypeError, ValueError) as error:
            raise typer.BadParameter(str(error), param_hint="MODULE:BUILD") from error
    found.save(output)
    rates = ", ".join(f"{lr:.3g}" for lr in found.lr)
    typer.echo(
        f"learning rate  {rates}  (from {found.lowest:.3g} to {found.highest:.3g} in the second half of the "
        f"search)\nheld-out loss  {found.loss_before:.4g} -> {found.loss_after:.4g} ± {found.error:.2g} in "
        f'{found.steps} steps\nschedule       {output}, for hdet.replay(optimizer, "{output}")'
    )
    typer.echo(
        f"Right for runs of about {found.steps} steps; for longer ones hdet.AutoLR finds it as they train."
        if found.learnt
        else "The loss did not fall beyond its error: ignore this rate, and try more --steps."
    )


def _load(build: str) -> Any:
    """The user's function."""
    where, _, name = build.rpartition(":")
    if not where or not name:
        raise ValueError(f"must be MODULE:BUILD, got {build!r}")
    path = Path(where)
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        return getattr(import_module(where), name)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {where}")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
