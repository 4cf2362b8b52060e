"""Which runs the paper's table is made of: at its learning rates, and at those where the baseline crashes.

A plain baseline is swept upward over half decades until it crashes in most seeds. That learning rate, and a
ninth of it, are the second block's; the best of the sweep is the tuned baseline. A baseline of the table is a
run of the sweep wherever it can be, so that nothing is run twice.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.regret.plan import learning_rate
from benchmarks.rows import KeptRows, Row

__all__ = [
    "CONFIGURATIONS",
    "PLAIN",
    "PRESETS",
    "SWEPT",
    "Block",
    "Configuration",
    "Plan",
    "Row",
    "Rows",
    "Run",
    "Settings",
    "blocks",
    "crash_lr",
    "planned",
    "run_of",
    "sweep",
    "tuned_lr",
]

#: What both baselines, the sweep and the tuned baseline are runs of.
PLAIN = "Baseline"
#: The paper's learning rates, and the ratio that it keeps between them.
PAPER_LOW, PAPER_HIGH, RATIO = 1e-4, 9e-4, 9.0
#: From 1e-4 to 10 in half decades, as exponents of √10.
_EXPONENTS = tuple(range(-8, 3))
#: Those learning rates.
SWEPT = frozenset(map(learning_rate, _EXPONENTS))


@dataclass(frozen=True)
class Configuration:
    """One line of the table: what is run, at which of a block's learning rates, and the paper's result."""

    name: str
    description: str
    #: The configuration of its runs.
    runs: str
    #: "low", "high", "tuned", or "none" for who is given no learning rate.
    rate: str
    paper_loss: float | None = None
    paper_crashed: bool = False


CONFIGURATIONS = {
    one.name: one
    for one in (
        Configuration("Baseline-Low", "plain OneCycleLR", PLAIN, "low", 3.294),
        Configuration("Baseline-High", "plain OneCycleLR", PLAIN, "high", 4.169, True),
        Configuration("Warm-Init", "warm noisy start, no averaging", "Warm-Init", "high", 4.674, True),
        Configuration("HDET w/o auto-LR", "spread + warm start", "HDET w/o auto-LR", "high", 3.280),
        Configuration("HDET w/o warm init", "spread + auto-LR", "HDET w/o warm init", "high", 3.281),
        Configuration("HDET (full)", "spread + warm start + auto-LR", "HDET (full)", "high", 3.277),
        Configuration("AutoLR", "no learning rate given", "AutoLR", "none"),
        Configuration("Tuned baseline", "the best of the sweep", PLAIN, "tuned"),
    )
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What paper and code leave open, or contradict each other in."""

    #: What brings the learning rate down once auto-LR acts, as ``OneCycleAutoLR(decay=)``.
    decay: str = "schedule"
    #: σ, or "auto".
    sigma: float | str = 0.1
    #: T; the task's own if None.
    sync_every: int | None = None
    #: f_final of every OneCycle curve, plain ones included. f_div is 25.
    final_div: float = 1e4
    #: When replicas are reassigned, and the first decision, as ``OneCycleAutoLR(rules=)``; the preset's.
    rules: str = "corrected"

    def of(self, configuration: str) -> Settings:
        """Those on which a configuration depends: plans that differ in others share its runs."""
        if configuration in ("HDET w/o warm init", "HDET (full)"):
            return self
        if configuration == "HDET w/o auto-LR":
            return Settings(sync_every=self.sync_every, final_div=self.final_div, rules=self.rules)
        return Settings(final_div=self.final_div)

    @property
    def options(self) -> str:
        """On the command line, as far as they are not the defaults.

        >>> Settings("literal", final_div=5.0).options
        '--decay literal --final-div 5'
        >>> Settings(**PRESETS["paper"], final_div=5.0).options
        '--preset paper --final-div 5'
        """
        preset = "paper" if self.rules == PRESETS["paper"]["rules"] else None
        usual = Settings(**PRESETS["paper"]) if preset else Settings()
        given = {"preset": preset, **{part.name: getattr(self, part.name) for part in fields(self)}}
        changed = {name: value for name, value in given.items() if value != getattr(usual, name, None)}
        words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in changed.items()}
        return " ".join(f"--{name.replace('_', '-')} {word}" for name, word in words.items())


#: Settings by one name. "paper": values and rules as printed.
PRESETS: dict[str, dict[str, Any]] = {"paper": {"decay": "literal", "sigma": 0.1, "rules": "printed"}}


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: all that its result depends on. ``data`` is the digest of its file, if any."""

    task: str
    scale: str
    configuration: str
    lr: float | None
    seed: int
    device: str = "cpu"
    data: str = ""
    settings: Settings = Settings()

    def __str__(self) -> str:
        rate = "" if self.lr is None else f" at {self.lr:g}"
        return f"{self.task} {self.configuration}{rate}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is to be run: the lines of the table, over seeds; ``exponents`` of √10 are the sweep's."""

    task: str
    scale: str
    seeds: int
    device: str = "cpu"
    data: str = ""
    lines: tuple[str, ...] = tuple(CONFIGURATIONS)
    exponents: tuple[int, ...] = _EXPONENTS
    settings: Settings = Settings()

    def run(self, configuration: str, lr: float | None, seed: int) -> Run:
        """A run of this plan's task and size on this plan's device."""
        settings = self.settings.of(configuration)
        return Run(self.task, self.scale, configuration, lr, seed, self.device, self.data, settings)

    def over_seeds(self, configuration: str, lr: float | None) -> list[Run]:
        """One run for each seed."""
        return [self.run(configuration, lr, seed) for seed in range(self.seeds)]

    def holds(self, run: Run) -> bool:
        """Whether a run, of any configuration, belongs to this plan's task, size and seeds."""
        return run == self.run(run.configuration, run.lr, run.seed) and run.seed < self.seeds


@dataclass(frozen=True)
class Block:
    """Two learning rates at which all configurations are run."""

    name: str
    title: str
    low: float
    high: float

    def lr(self, line: str, tuned: float | None) -> float | None:
        """The learning rate of a line; None for AutoLR, and for a tuned baseline not yet known."""
        rates = {"low": self.low, "high": self.high, "tuned": tuned}
        return rates.get(CONFIGURATIONS[line].rate)


class Rows(KeptRows[Run]):
    """The results so far of this experiment's runs."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, run_of)


def run_of(row: Row) -> Run:
    """The run whose result ``row`` is. Rows without settings were written when there was no choice."""
    known = {part.name: row[part.name] for part in fields(Run) if part.name != "settings"}
    return Run(**known, settings=Settings(**row.get("settings", {})))


def planned(plan: Plan, finished: Mapping[Run, Row]) -> list[Run]:
    """Every run the plan asks for as far as can be known by now: the sweep first, for much hangs on it."""
    runs = [run for lr in sweep(plan, finished) for run in plan.over_seeds(PLAIN, lr)]
    tuned = tuned_lr(plan, finished)
    for block in blocks(plan, finished):
        for line in plan.lines:
            lr, rate = block.lr(line, tuned), CONFIGURATIONS[line].rate
            if lr is not None or rate == "none":
                runs += plan.over_seeds(CONFIGURATIONS[line].runs, lr)
    return list(dict.fromkeys(runs))


def sweep(plan: Plan, finished: Mapping[Run, Row]) -> list[float]:
    """The learning rates of the plain baseline, upward to the first that may crash in most seeds."""
    rates = []
    for lr in map(learning_rate, plan.exponents):
        rates.append(lr)
        seen = [row for run in plan.over_seeds(PLAIN, lr) if (row := finished.get(run)) is not None]
        survived = sum(not row["crashed"] for row in seen)
        if 2 * survived < plan.seeds:
            break
    return rates


def crash_lr(plan: Plan, finished: Mapping[Run, Row]) -> float | None:
    """The lowest learning rate of the sweep that crashed in most seeds; None if none did, or none yet."""
    last = sweep(plan, finished)[-1]
    rows = [finished.get(run) for run in plan.over_seeds(PLAIN, last)]
    crashed = sum(row is not None and row["crashed"] for row in rows)
    return last if 2 * crashed > plan.seeds else None


def tuned_lr(plan: Plan, finished: Mapping[Run, Row]) -> float | None:
    """The learning rate of the sweep with the lowest mean training loss; None while the sweep goes on."""
    if not _swept(plan, finished):
        return None
    means = {}
    for lr in sweep(plan, finished):
        rows = [finished[run] for run in plan.over_seeds(PLAIN, lr)]
        if not any(row["crashed"] or row["train"] is None for row in rows):
            means[lr] = statistics.fmean(row["train"] for row in rows)
    return min(means, key=lambda lr: means[lr], default=None)


def blocks(plan: Plan, finished: Mapping[Run, Row]) -> Sequence[Block]:
    """The paper's learning rates and, once the sweep is done, those at which the baseline crashes."""
    found = [Block("paper", "at the paper's learning rates", PAPER_LOW, PAPER_HIGH)]
    if _swept(plan, finished):
        high = crash_lr(plan, finished)
        title = "at the lowest learning rate at which the plain baseline crashes in most seeds, and a ninth"
        if high is None:
            high = learning_rate(plan.exponents[-1])
            title = f"at {high:g}, up to which the plain baseline never crashed in most seeds, and a ninth"
        found.append(Block("crash", title, float(f"{high / RATIO:.4g}"), high))
    return found


def _swept(plan: Plan, finished: Mapping[Run, Row]) -> bool:
    runs = [run for lr in sweep(plan, finished) for run in plan.over_seeds(PLAIN, lr)]
    return all(run in finished for run in runs)
