"""Every experiment's numbers as Markdown: which table belongs to which, and where its numbers come from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pretrained import tables as pretrained
from benchmarks.speedrun import tables as speedrun
from benchmarks.tools.quote.files import read
from benchmarks.tools.quote.tables import brief, cost, faults, paper, rates, several
from benchmarks.tools.quote.tables.grid import machine_of

__all__ = ["PARTS", "made_by", "quoted", "source"]

#: The tables of an experiment: the usual one, and by a second word the others.
PARTS: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "autolr": {"": cost.autolr},
    "regret": {"brief": brief.brief},
    "zoo": {"": rates.zoo},
    "zoo-finders": {"": rates.zoo_finders},
    "zoo-replicas": {
        "": several.zoo_replicas,
        "parts": several.zoo_parts,
        "sizes": several.zoo_sizes,
    },
    "pretrained": {
        "": pretrained.markdown,
        **{part: partial(pretrained.classified, part=part) for part in pretrained.CLASSIFIED},
    },
    "speedrun": {"": speedrun.markdown},
    "autotune": {"": several.autotune},
    "chaos": {"": faults.chaos},
    "paper": {"edge": paper.edge, "large": paper.large},
}
_OVER_SEEDS = ("regret", "paper")
_STATISTIC = {
    "chaos": "counts",
    "zoo": "means over seeds",
    "zoo-finders": "one seed",
    "pretrained": "means over splits or seeds ± their deviation; differences ± half of the 95 % confidence "
    "interval",
    "speedrun": "means over seeds ± their deviation, accuracies in per cent; differences ± half of the 95 % "
    "confidence interval, with a two-sided z-test",
    "autotune": "means over three seeds",
    "zoo-replicas": "means over seeds, then over tasks; what follows ± are two standard errors",
    "autolr": "runs take turns, on a CPU step by step, on a GPU ten by ten",
    **dict.fromkeys(_OVER_SEEDS, "means over seeds; what follows ± is half of the 95 % confidence interval"),
}


def quoted(name: str, part: str, evidence: Path) -> str:
    """The table of one file, and the line that says how it was made."""
    result = read(name, evidence)
    tables = PARTS[result["experiment"]]
    if part not in tables:
        known = ", ".join(repr(known) for known in tables if known) or "none"
        raise LookupError(f"{name}.json has no part {part!r}: the parts that a mark may name are {known}")
    return f"{tables[part](result)}\n\n{source(result)}"


def made_by(names: str, evidence: Path) -> str:
    """Commands of files in few words, machine by machine, with the dates."""
    found: dict[str, list[str]] = {}
    for name in names.split():
        result = read(name, evidence)
        where = f"{machine_of(result)}, {result['machine']['date'][:10]}"
        found.setdefault(where, []).append(f"`{result['command']}`")
    return "; ".join(f"{', '.join(commands)} ({where})" for where, commands in found.items())


def source(result: dict[str, Any]) -> str:
    """Command, machine, version and date of a result, and what its numbers are."""
    about = result["machine"]
    where = about.get("gpu") or f"{about['cores']} cores of {about['cpu']}"
    kind = _STATISTIC.get(result["experiment"], "medians")
    return f"`{result['command']}`, {where}, torch {about['torch']}, {about['date'][:10]}; {kind}."
