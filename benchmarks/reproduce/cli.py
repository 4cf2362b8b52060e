"""``python -m benchmarks reproduce``: an experiment of the paper at a size that one machine holds."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.reproduce.plan import PRESETS, Settings
from benchmarks.show import Device, Scale, as_json, progress
from hdet.cli.show import console, plain_errors, stopped

__all__ = ["Experiment", "reproduce"]


class Experiment(str, Enum):
    """What of the paper can be repeated."""

    table1 = "table1"
    figure2 = "figure2"
    figure3 = "figure3"
    pretraining = "pretraining"
    released = "released"


class Decay(str, Enum):
    """As ``OneCycleAutoLR(decay=)``."""

    schedule = "schedule"
    geometric = "geometric"
    literal = "literal"


class Preset(str, Enum):
    """Settings by one name."""

    paper = "paper"


def reproduce(
    name: Annotated[Experiment, typer.Argument(help="What of the paper to repeat.")],
    scale: Annotated[
        Scale, typer.Option(help="The size: minutes a seed on two cores, or one GPU.")
    ] = Scale.cpu,
    device: Annotated[
        Device | None, typer.Option(help="Where to train.", show_default="where the scale belongs")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="KuaiRand's file, or its folder, to train on.", show_default="a synthetic feed"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each kind.")] = 3,
    rows: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The file of finished runs, which are not run again.",
            show_default="runs/reproduce-TASK-SCALE.jsonl",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time.", show_default="one on each core")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0, help="After so long start no further run, and end.", show_default="until all are done"
        ),
    ] = None,
    decay: Annotated[
        Decay | None,
        typer.Option(
            help="What lowers the rate once auto-LR acts: the curve, Eq. 8 corrected, or Eq. 8 as printed.",
            show_default="schedule",
        ),
    ] = None,
    sigma: Annotated[
        str | None,
        typer.Option(help="σ of the softmax, in units of the loss, or auto.", show_default="0.1"),
    ] = None,
    sync_every: Annotated[
        int | None, typer.Option(min=1, help="T, steps between averagings.", show_default="1/120 of the run")
    ] = None,
    final_div: Annotated[
        float,
        typer.Option(help="f_final of all OneCycle curves. With --decay literal, 5 leaves a residual rate."),
    ] = 1e4,
    preset: Annotated[
        Preset | None,
        typer.Option(help="paper: values and rules as printed (decay literal, σ 0.1).", show_default="none"),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Your copy of the authors' file with OneCycleAutoLR, which released runs beside plain DDP.",
            show_default="none",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="The folder to write to.",
            show_default="runs/reproduce",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Tiny runs, to see that it works; nothing can be concluded.")
    ] = False,
) -> None:
    """Repeat an experiment of the paper at a size that one machine holds; stopped, it goes on from there."""
    from benchmarks.reproduce import command as experiment

    screen = console()
    if quick:
        screen.print("Tiny runs, to see that it works: nothing can be concluded from their numbers.")
    folder = output or Path("runs/reproduce")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--output must be a folder that can be made: {error}") from error
    if (name is Experiment.released) != (code is not None):
        raise typer.BadParameter(f"{name.value} {'takes no' if code else 'needs'} --code")
    if code is not None:
        return _released(code, folder)
    again = "runs that were done are kept: the same command goes on from there"
    with stopped(again), plain_errors(), screen.status(name.value) as status:
        try:
            result = experiment.run(
                name.value,
                scale=scale.value,
                device=device and device.value,
                data=data,
                seeds=seeds,
                rows=rows,
                processes=processes,
                minutes=minutes,
                settings=_settings(decay, sigma, sync_every, final_div, preset),
                quick=quick,
                on_progress=progress(screen, status),
            )
        except (ValueError, FileNotFoundError) as error:
            raise typer.BadParameter(str(error)) from error
    screen.print(experiment.said(result), markup=False, highlight=False, soft_wrap=True)
    with plain_errors():
        files = experiment.write(result, folder, as_json(result))
    screen.print(f"Written to {', '.join(map(str, files))}", soft_wrap=True, highlight=False)


def _released(code: Path, folder: Path) -> None:
    from benchmarks.reproduce import released

    screen = console()
    again = "nothing was written: run it again"
    with stopped(again), plain_errors(), screen.status("released") as status:
        try:
            result = released.run(code, progress(screen, status))
        except (ValueError, FileNotFoundError) as error:
            raise typer.BadParameter(str(error)) from error
    file = folder / "released.json"
    file.write_text(as_json(result), encoding="utf-8")
    lines = [*result["sentences"], f"Written to {file}"]
    screen.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _settings(
    decay: Decay | None, sigma: str | None, sync_every: int | None, final_div: float, preset: Preset | None
) -> Settings:
    """What was asked for: an option of its own before the preset, the preset before the default."""
    given: dict[str, Any] = {"sync_every": sync_every, "final_div": final_div}
    given |= PRESETS[preset.value] if preset else {}
    given |= {"decay": decay.value} if decay else {}
    given |= {"sigma": _sigma(sigma)} if sigma else {}
    if final_div <= 0:
        raise ValueError(f"--final-div must be above 0, got {final_div:g}")
    return Settings(**given)


def _sigma(text: str) -> float | str:
    try:
        value = math.inf if text == "auto" else float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise ValueError(f"--sigma must be a number above 0, or auto, got {text}")
    return "auto" if text == "auto" else value
