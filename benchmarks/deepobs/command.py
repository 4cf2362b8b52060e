"""AutoLR on DeepOBS's ``quadratic_deep``, beside the baselines that its makers published for it.

What is run, and what it is compared with, was fixed beforehand in docs/protocols/yardsticks.md. The published
settings are run here as well: if they do not land where they should, this is another problem than theirs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from benchmarks import machine
from benchmarks.deepobs.problem import STEPS, Quadratic, batches, probe_batches, test_loss
from benchmarks.pool import Say
from benchmarks.rows import six_digits
from benchmarks.workloads.base import seeded
from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.schedule import WarmStableDecay
from hdet.probes import Probe

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["OPTIMIZERS", "PUBLISHED", "START", "analyse", "losses_of", "run", "table"]

#: Learning rate, and mean and deviation of the test loss over ten seeds (DeepOBS_Baselines).
PUBLISHED: dict[str, dict[str, float]] = {
    "SGD": {"lr": 0.01584893192461114, "mean": 87.39747, "deviation": 0.16895},
    "momentum 0.99": {"lr": 0.0025118864315095794, "mean": 87.04504, "deviation": 0.02518},
    "Adam": {"lr": 0.039810717055349734, "mean": 87.11188, "deviation": 0.02419},
}
_PUBLISHED_SEEDS = 10
#: The published test loss before the first step.
START = 353.44676
OPTIMIZERS = (*PUBLISHED, "momentum 0.9")
_DEFAULT_LR = 1e-3
#: The schedule that AutoLR has, at the best of many learning rates.
_SWEEP = "swept, with decay"
#: With a new order of samples in every epoch, of which nothing was published.
_RESHUFFLED = ", reshuffled"
#: 1e-5 … 100, as they were tuned.
_SWEPT = tuple(10 ** (-5 + 0.2 * k) for k in range(36))


def run(quick: bool = False, device: str = "cpu", on_progress: Say | None = None) -> dict[str, Any]:
    """Every arm over ten seeds, two if ``quick``; the result is plain JSON.

    It is run on the CPU whatever the device, where 700 steps in 100 dimensions take a fraction of a second.
    """
    say = on_progress or (lambda _: None)
    seeds = range(2 if quick else 10)
    swept = _SWEPT[15:20] if quick else _SWEPT
    arms: dict[str, dict[str, dict[str, Any]]] = {}
    for optimizer in OPTIMIZERS:
        say(optimizer)
        published = PUBLISHED.get(optimizer)
        tuned = min(swept, key=lambda lr: losses_of(optimizer, [0], lr, decay=True)[0])
        rates: dict[str, float | None] = {"AutoLR": None, "default": _DEFAULT_LR, _SWEEP: tuned}
        if published:
            rates["as published"] = published["lr"]
        for again in [name for name in ("AutoLR", "as published") if name in rates]:
            rates[again + _RESHUFFLED] = rates[again]
        arms[optimizer] = {}
        for arm, lr in rates.items():
            how = {"decay": arm == _SWEEP, "reshuffled": arm.endswith(_RESHUFFLED)}
            arms[optimizer][arm] = {"lr": lr, "losses": losses_of(optimizer, seeds, lr, **how)}
    about = machine.about("deepobs", quick=quick, device="cpu")
    del device
    settings = {"steps": STEPS, "seeds": len(seeds), "swept": len(swept)}
    return {**about, "settings": settings, **six_digits(analyse(arms, test_loss(Quadratic())))}


def losses_of(
    optimizer: str,
    seeds: Sequence[int],
    lr: float | None,
    *,
    decay: bool = False,
    reshuffled: bool = False,
) -> list[float]:
    """The final test loss of each seed; infinity where it is not finite. Without ``lr``, AutoLR's."""
    losses = []
    for seed in seeds:
        with seeded(seed):
            losses.append(_final_loss(optimizer, seed, lr, decay, reshuffled))
    return losses


def _final_loss(name: str, seed: int, lr: float | None, decay: bool, reshuffled: bool) -> float:
    model = Quadratic()
    optimizer = _optimizer(name, model, lr or _DEFAULT_LR)  # of which AutoLR reads nothing
    after_step: Any = lambda: None  # noqa: E731
    if lr is None:
        probe = Probe(model, probe_batches(), model=model)
        after_step = AutoLR(optimizer, total_steps=STEPS, probe=probe).step
    elif decay:
        after_step = LambdaLR(optimizer, WarmStableDecay.of(STEPS)).step
    for (samples,) in islice(batches(seed, reshuffled=reshuffled), STEPS):
        optimizer.zero_grad()
        model(samples).backward()
        optimizer.step()
        after_step()
    loss = test_loss(model)
    return loss if math.isfinite(loss) else math.inf


def _optimizer(name: str, model: Quadratic, lr: float) -> Optimizer:
    if name == "Adam":
        return Adam(model.parameters(), lr=lr)
    return SGD(model.parameters(), lr=lr, momentum=float(name.partition(" ")[2] or 0.0))


# ---------------------------------------------------------------------- what it comes to


def analyse(arms: Mapping[str, Mapping[str, Mapping[str, Any]]], start: float) -> dict[str, Any]:
    """Means and deviations, whether the problem is the published one, and who is below whom."""
    lines = []
    for optimizer, of in arms.items():
        published = PUBLISHED.get(optimizer)
        found = {name: _summarised(arm) for name, arm in of.items()}
        line: dict[str, Any] = {"optimizer": optimizer, "published": published, "arms": found}
        if published:
            line["agrees"] = _beside(found["as published"], published) == "within"
            line["AutoLR_is"] = _beside(found["AutoLR"], published)
        goal = (published or found[_SWEEP])["mean"]
        line["regret_percent"] = _share(found["AutoLR"]["mean"], goal, start)
        lines.append(line)
    same_start = abs(start - START) <= 1e-4
    return {"start": {"loss": start, "published": START, "agrees": same_start}, "rows": lines}


def _summarised(arm: Mapping[str, Any]) -> dict[str, Any]:
    """With mean and deviation; a loss that is not finite has no place in JSON, and leaves no mean."""
    losses = [loss if math.isfinite(loss) else None for loss in arm["losses"]]
    known = [loss for loss in losses if loss is not None]
    whole = len(known) == len(losses)
    mean, deviation = (statistics.fmean(known), statistics.stdev(known)) if whole else (None, None)
    return {**arm, "losses": losses, "mean": mean, "deviation": deviation}


def _beside(arm: Mapping[str, Any], published: Mapping[str, float]) -> str:
    """Below, within or above two standard errors of the difference of the means."""
    if arm["mean"] is None:
        return "above"
    error = math.hypot(
        arm["deviation"] / math.sqrt(len(arm["losses"])), published["deviation"] / math.sqrt(_PUBLISHED_SEEDS)
    )
    apart = arm["mean"] - published["mean"]
    return "within" if abs(apart) <= 2 * error else "below" if apart < 0 else "above"


def _share(loss: float | None, goal: float | None, start: float) -> float | None:
    return None if loss is None or goal is None else 100 * (loss - goal) / (start - goal)


def table(result: dict[str, Any]) -> Group:
    """One line for each optimizer, and whether the problem is the published one."""
    from rich.console import Group
    from rich.table import Table

    headings = ["optimizer", "published", "the same here", "AutoLR", "is", _SWEEP, "at 1e-3"]
    headings += [name + _RESHUFFLED for name in ("as published", "AutoLR")]
    view = Table(*headings, title="DeepOBS quadratic_deep: test loss after 700 steps")
    for row in result["rows"]:
        arms = row["arms"]
        view.add_row(
            row["optimizer"],
            _cell(row["published"]),
            _cell(arms.get("as published")) + ("" if row.get("agrees", True) else " (differs)"),
            _cell(arms["AutoLR"]),
            row.get("AutoLR_is", "–"),
            f"{_cell(arms[_SWEEP])} @ {arms[_SWEEP]['lr']:.3g}",
            _cell(arms["default"]),
            *(_cell(arms.get(name + _RESHUFFLED)) for name in ("as published", "AutoLR")),
        )
    start = result["start"]
    same = "agrees" if start["agrees"] else "does not agree"
    return Group(view, f"At the start {start['loss']}, published {start['published']}: {same}")


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    return "diverged" if found["mean"] is None else f"{found['mean']:.3f} ± {found['deviation']:.3f}"
