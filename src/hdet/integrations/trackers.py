"""Trackers (TensorBoard, Weights & Biases, MLflow, trackio, and whatever logs as they do) hear of every sync.

A tracker is told the lines of the history, by rank 0 alone::

    auto = hdet.AutoLR(optimizer, probe=probe, history=["run.jsonl", Tracker(wandb.run)])

What it shows, at the step of the sync:

===============================  =========================================================
hdet/lr/<group>                  the base learning rate after the sync
hdet/value/<hyperparameter>      the base of anything else that is explored
hdet/replica/<r>/loss            a replica's mean training loss since the sync before
hdet/lag/<scope>                 a horizon's evidence
hdet/sync_ms                     how long the sync took
hdet/event                       what was odd, in words; a count where a tracker takes numbers alone
===============================  =========================================================

Nothing is imported: a tracker is known by its methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Tracker", "metrics"]


class Tracker:
    """Tells a tracker the lines of a history; give it to a door as ``history=``, alone or in a list.

    One that raises is logged once, and training goes on.

    Args:
        target: a run of Weights & Biases or trackio (``.log(dict, step=)``), TensorBoard's ``SummaryWriter``,
            the module ``mlflow`` with a run begun, or one of Lightning's loggers (``.log_metrics(dict,
            step=)``). None is for ranks that have none: only rank 0 tells.
    """

    def __init__(self, target: Any) -> None:
        ways = ("add_scalar", "log_metrics", "log")
        self._way = next((way for way in ways if callable(getattr(target, way, None))), "")
        if target is not None and not self._way:
            raise TypeError(
                f"Tracker: target must have one of {', '.join(ways)}, got {type(target).__name__}; give the "
                "run, the writer, or the module mlflow"
            )
        self._target = target
        self._step = 0
        if callable(getattr(target, "define_metric", None)):  # Weights & Biases
            target.define_metric("hdet/step")
            target.define_metric("hdet/*", step_metric="hdet/step")

    def __repr__(self) -> str:
        return f"Tracker({getattr(self._target, '__name__', type(self._target).__name__)})"

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Show a line; notes but for warnings have nothing to draw."""
        self._step = line.get("step", self._step)
        events = [line["text"]] if line.get("kind") == "said" else list(line.get("events", ()))
        numbers = metrics(line)
        if not numbers and not events:
            return
        if self._target is None:
            raise TypeError("target must be a tracker on rank 0, got None")
        {"add_scalar": self._write, "log_metrics": self._log_metrics, "log": self._log}[self._way](
            numbers, events
        )

    def _write(self, numbers: dict[str, float], events: list[str]) -> None:
        for name, value in numbers.items():
            self._target.add_scalar(name, value, self._step)
        if events:
            self._target.add_text("hdet/event", "\n\n".join(events), self._step)

    def _log_metrics(self, numbers: dict[str, float], events: list[str]) -> None:
        counted = {"hdet/event": float(len(events))} if events else {}
        self._target.log_metrics({**numbers, **counted}, step=self._step)
        if events and callable(getattr(self._target, "set_tag", None)):  # MLflow has words for a run alone
            self._target.set_tag(f"hdet/event/{self._step}", "\n".join(events))

    def _log(self, numbers: dict[str, float], events: list[str]) -> None:
        line: dict[str, Any] = {**numbers, **({"hdet/event": "\n".join(events)} if events else {})}
        if callable(getattr(self._target, "define_metric", None)):
            line["hdet/step"] = self._step
            if self._target.step > self._step:
                # Weights & Biases drops what is logged at a step before its own; that counts the calls of a
                # user who gives none.
                self._target.log(line)
                return
        self._target.log(line, step=self._step)


def metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """What of a line can be drawn; nothing of a note, and no number that is not finite.

    >>> lr = {"name": "lr/0", "multipliers": (1.0,), "base_after": 0.1}
    >>> metrics({"step": 10, "losses": [2.0, None], "hyperparameters": [lr], "milliseconds": 1.5})
    {'hdet/lr/0': 0.1, 'hdet/replica/0/loss': 2.0, 'hdet/sync_ms': 1.5}
    """
    if "kind" in line:
        return {}
    found: dict[str, float | None] = {}
    for explored in line["hyperparameters"]:
        # Only a learning rate has multipliers.
        place = "" if explored["multipliers"] else "value/"
        found[f"hdet/{place}{explored['name']}"] = explored["base_after"]
    found |= {f"hdet/replica/{r}/loss": loss for r, loss in enumerate(line["losses"])}
    found |= {f"hdet/lag/{scope['name']}": scope["lag"] for scope in line.get("horizon", ())}
    found["hdet/sync_ms"] = line["milliseconds"]
    return {name: value for name, value in found.items() if value is not None}
