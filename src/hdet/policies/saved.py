"""What a horizon's saved state must be, before anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hdet import rules
from hdet.policies.incumbent import Incumbent
from hdet.policies.telling import refuse_other_scope
from hdet.probes import Probe
from hdet.weights.trail import Trail
from hdet.weights.way_back import WayBack

__all__ = ["check_horizon"]

#: Of a factor: what is counted, and what may not be known.
_COUNTS = ("windows", "backs", "total_backs", "blind")
_PERHAPS = ("first_loss", "gap", "progress", "pace", "ceiling")


def check_horizon(
    caller: str,
    saved: Mapping[str, Any],
    step: int,
    here: int,
    trail: Trail,
    incumbent: Incumbent,
    way_back: WayBack,
    probe: Probe,
) -> None:
    """Raise ValueError unless what it counts can be counted, ``step`` steps into the run, its factors are as
    many as ``here``, and what it keeps of the weights is of these weights."""
    _check_factors(caller, saved["states"], here)
    _check_clock(caller, saved, step)
    rules.of_length(caller, "middles of windows", saved["previous_middle"], len(saved["previous_middle"]))
    rules.count(caller, "constant", saved["constant"][0])
    probe.check_state(caller, saved["probe"])
    _check_trail(caller, saved["trail"], trail)
    incumbent.check_state(caller, saved.get("incumbent"))
    way_back.check_state(caller, saved)


def _check_factors(caller: str, saved: Any, here: int) -> None:
    """As many as there are, each a factor, and what is remembered of it."""
    refuse_other_scope(caller, len(saved), here)
    for i, state in enumerate(saved):
        rules.positive(caller, f"the value of factor {i}", state["value"])
        for name in _COUNTS:
            rules.count(caller, f"{name} of factor {i}", state.get(name, 0))
        for name in _PERHAPS:
            if state.get(name) is not None:
                rules.number(caller, f"{name} of factor {i}", state[name])


def _check_clock(caller: str, saved: Mapping[str, Any], step: int) -> None:
    """A window in progress began before, and ends; without one the search is over."""
    rules.count(caller, "the window's begin", saved["began"], most=step)
    rules.count(caller, "the search's begin", saved.get("origin", 0), most=step)
    for name in ("taken", "fresh"):
        rules.flag(caller, name, saved[name])
    searching = rules.flag(caller, "searching", saved.get("searching", saved["window_end"] is not None))
    if searching or saved["window_end"] is not None:
        rules.count(caller, "window_end", saved["window_end"])
    for name in ("peak", "now"):
        rules.number(caller, f"the schedule's {name}", saved["curve"][name == "now"], least=0.0)


def _check_trail(caller: str, saved: Mapping[str, Any], trail: Trail) -> None:
    """Tensors as large as those that are trained here, one for each."""
    mean = saved["mean"]
    for name in ("count", "stride"):
        rules.count(caller, f"{name} of the window's mean", mean[name])
    for tensors in (mean["mean"], *([saved["previous"]] if "previous" in saved else [])):
        for number, tensor in _numbered(caller, tensors, trail).items():
            own = trail.mean.tensors[trail.numbers.index(number)].shape
            if tensor.shape != own:
                raise ValueError(
                    f"{caller}.load_state_dict: the state must be of a model of the same shapes: what it has "
                    f"of parameter {number} is of shape {tuple(tensor.shape)}, and here it is {tuple(own)}"
                )
    if "before" in saved:
        rules.of_length(caller, "sketches of the weights", saved["before"], len(trail.scopes))
        for _, norm in saved["before"]:
            rules.number(caller, "the norm of the weights", norm, least=0.0)


def _numbered(caller: str, saved: Any, trail: Trail) -> dict[int, Tensor]:
    """By the parameters' numbers; those of before were a list."""
    found = saved if isinstance(saved, Mapping) else dict(zip(trail.numbers, saved, strict=False))
    if len(saved) != len(trail.numbers) or sorted(found) != sorted(trail.numbers):
        raise ValueError(
            f"{caller}.load_state_dict: the state must be of a run that trains the same parameters, got "
            f"{len(saved)}, numbered {sorted(found)}, for {sorted(trail.numbers)}; freeze as it was then"
        )
    return dict(found)
