"""Every sync in a tracker: TensorBoard, Weights & Biases, MLflow, trackio, and others with their methods.

Rank 0 logs the lines of the history::

    auto = hdet.AutoLR(optimizer, probe=probe, history=["run.jsonl", Tracker(wandb.run)])

It logs, at the step of the sync:

===============================  =========================================================
hdet/lr/<group>                  the base learning rate after the sync
hdet/value/<hyperparameter>      the base of anything else that is explored
hdet/replica/<r>/loss            a replica's mean training loss since the sync before
hdet/lag/<scope>                 what AutoLR moves the rate by
hdet/sync_ms                     how long the sync took
hdet/event                       warnings, as text; their number where a tracker takes only numbers
===============================  =========================================================

No tracker is imported: it is recognised by its methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["Tracker", "metrics"]


class Tracker:
    """Logs the lines of a history; give it to a door as ``history=``, alone or in a list.

    If it raises, hdet warns once and training continues.

    Args:
        target: a run of Weights & Biases or trackio (``.log(dict, step=)``), TensorBoard's ``SummaryWriter``,
            the module ``mlflow`` with a run begun, or one of Lightning's loggers (``.log_metrics(dict,
            step=)``). None is for other ranks: only rank 0 logs.
    """

    def __init__(self, target: Any) -> None:
        methods = ("add_scalar", "log_metrics", "log")
        self._method = next((name for name in methods if callable(getattr(target, name, None))), "")
        if target is not None and not self._method:
            raise TypeError(
                f"Tracker: target must have one of {', '.join(methods)}, got {type(target).__name__}; give "
                "the run, the writer, or the module mlflow"
            )
        self._target = target
        self._step = 0
        if callable(getattr(target, "define_metric", None)):  # Weights & Biases
            target.define_metric("hdet/step")
            target.define_metric("hdet/*", step_metric="hdet/step")

    def __repr__(self) -> str:
        return f"Tracker({getattr(self._target, '__name__', type(self._target).__name__)})"

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Log a line; of notes, only warnings."""
        self._step = line.get("step", self._step)
        events = [line["text"]] if line.get("kind") == "said" else list(line.get("events", ()))
        numbers = metrics(line)
        if not numbers and not events:
            return
        if self._target is None:
            raise TypeError("target must be a tracker on rank 0, got None")
        getattr(self, f"_{self._method}")(numbers, events)

    def _add_scalar(self, numbers: dict[str, float], events: list[str]) -> None:
        for name, value in numbers.items():
            self._target.add_scalar(name, value, self._step)
        if events:
            self._target.add_text("hdet/event", "\n\n".join(events), self._step)

    def _log_metrics(self, numbers: dict[str, float], events: list[str]) -> None:
        counted = {"hdet/event": float(len(events))} if events else {}
        self._target.log_metrics({**numbers, **counted}, step=self._step)
        if events and hasattr(self._target, "set_tag"):  # MLflow has text only as tags of a run
            self._target.set_tag(f"hdet/event/{self._step}", "\n".join(events))

    def _log(self, numbers: dict[str, float], events: list[str]) -> None:
        line: dict[str, Any] = {**numbers, **({"hdet/event": "\n".join(events)} if events else {})}
        if callable(getattr(self._target, "define_metric", None)):
            line["hdet/step"] = self._step
            if self._target.step > self._step:
                # Weights & Biases drops what is logged at a step before its own, and its own counts the calls
                # of log() without a step.
                self._target.log(line)
                return
        self._target.log(line, step=self._step)


def metrics(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line: none of a note, and only finite ones.

    >>> lr = {"name": "lr/0", "multipliers": (1.0,), "base_after": 0.1}
    >>> metrics({"step": 10, "losses": [2.0, None], "hyperparameters": [lr], "milliseconds": 1.5})
    {'hdet/lr/0': 0.1, 'hdet/replica/0/loss': 2.0, 'hdet/sync_ms': 1.5}
    """
    if "kind" in line:
        return {}
    found: dict[str, float | None] = {}
    for explored in line["hyperparameters"]:
        # Only a learning rate has multipliers.
        prefix = "hdet/" if explored["multipliers"] else "hdet/value/"
        found[prefix + explored["name"]] = explored["base_after"]
    found |= {f"hdet/replica/{r}/loss": loss for r, loss in enumerate(line["losses"])}
    found |= {f"hdet/lag/{scope['name']}": scope["lag"] for scope in line.get("horizon", ())}
    found["hdet/sync_ms"] = line["milliseconds"]
    return {name: value for name, value in found.items() if value is not None}
