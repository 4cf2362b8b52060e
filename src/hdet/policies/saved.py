"""The saved state of a horizon: what it is made of, what of it can be left out, and what is refused before
anything of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from hdet import rules
from hdet.controllers import HorizonState
from hdet.policies.base import Context, Policy
from hdet.policies.clock import Clock, Curve
from hdet.policies.incumbent import Incumbent
from hdet.policies.telling import refuse_other_scope
from hdet.policies.useless_probe import UselessProbe
from hdet.probes import Probe
from hdet.weights.trail import Trail
from hdet.weights.way_back import WayBack

__all__ = ["SavedHorizon"]

#: Of a factor: what is counted, and what may not be known.
_COUNTS = ("windows", "backs", "total_backs", "blind")
_PERHAPS = ("first_loss", "gap", "progress", "pace", "ceiling")


class SavedHorizon(Policy):
    """What a horizon remembers; :class:`hdet.policies.horizon.Horizon` sets all of it."""

    incumbent: Incumbent
    _context: Context
    _probe: Probe
    _states: list[HorizonState]
    _clock: Clock
    _curve: Curve
    _trail: Trail
    _way_back: WayBack
    _useless: UselessProbe
    #: Whether the window's first step was taken, and whether it is the first of a search.
    _taken: bool
    _fresh: bool
    _previous_middle: list[float]

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        return {
            "states": [asdict(state) for state in self._states],
            **self._clock.state_dict(),
            "taken": self._taken,
            "fresh": self._fresh,
            "previous_middle": list(self._previous_middle),
            "incumbent": self.incumbent.state_dict(),
            "curve": [self._curve.peak, self._curve.now],
            "constant": self._useless.state(),
            "trail": self._trail.state_dict(),
            **self._way_back.state_dict(),
            "probe": self._probe.state_dict(self._context.replicas.place),
        }

    def check_state(self, caller: str, state: Mapping[str, Any], step: int) -> None:
        kept = self._trail, self.incumbent, self._way_back, self._probe
        _check_horizon(caller, state, step, len(self._states), *kept)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._states = [HorizonState(**saved) for saved in state["states"]]
        self._clock.load_state_dict(state)
        self.window_end, self._taken, self._fresh = self._clock.end, state["taken"], state["fresh"]
        self._previous_middle, self._curve = list(state["previous_middle"]), Curve(*state["curve"])
        self.incumbent.load_state_dict(state.get("incumbent"))
        self._useless.load(state["constant"])
        self._trail.load_state_dict(state["trail"])
        self._way_back.load_state_dict(state)
        self._probe.load_state_dict(state["probe"], self._context.replicas.place)

    def compacted(self, state: Mapping[str, Any], step: int) -> dict[str, Any]:
        """As if a window began here: its mean so far, and the way back to its start, are left out. What it is
        compared with stays, and so do the best weights and the beginning."""
        trail = {**state["trail"], "mean": None, "alarm": None}
        window = {
            "began": step,
            "window_end": state["window_end"] and self._clock.after(step),
            "taken": False,
        }
        return {**state, **window, "trail": trail, "snapshot": None}


def _check_horizon(
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
    mean, kept = saved["mean"], [saved["previous"]] if "previous" in saved else []
    if mean is not None:  # a compact state has none
        for name in ("count", "stride"):
            rules.count(caller, f"{name} of the window's mean", mean[name])
        kept.append(mean["mean"])
    for tensors in kept:
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
