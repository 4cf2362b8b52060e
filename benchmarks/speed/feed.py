"""What drawing the samples costs in newsfeed training, beside a whole step: batch, forward, backward, Adam.

Whole stretches of samples are timed, since the synthetic stream makes many at once, and the two kinds take
turns in one process in the order A B B A: drawing alone, training, training, drawing alone. Both read on in
the same stream, so no sample comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Adam

from benchmarks import machine
from benchmarks.machine import rounded, summary
from benchmarks.workloads import WORKLOADS, Batch, Workload

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["STRETCH", "markdown", "run", "table"]

_GOAL = 0.10
#: Samples in a timed stretch: whole chunks of the stream's reader, so that each stretch pays for its own.
STRETCH = 2048
_ROUNDS, _QUICK_ROUNDS = 12, 2
_SOURCES = {"newsfeed-stream": "synthetic stream", "newsfeed": "KuaiRand"}
_SCALES = {"cpu": ("cpu", "gpu"), "cuda": ("gpu",)}


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure on ``device`` and hold the result against the goal; the result is plain JSON."""
    say = on_progress or (lambda _: None)
    rows, caveats = [], []
    for scale in ("cpu",) if quick else _SCALES[torch.device(device).type]:
        for name, source in _SOURCES.items():
            say(f"{source}, {scale} size")
            began = time.perf_counter()
            try:
                workload = WORKLOADS[name](scale, device)
            except FileNotFoundError:
                # The error lists this machine's folders, which are nobody else's concern.
                caveats.append(f"{source} was not measured: set HDET_DATA to the folder that holds its file.")
                continue
            set_up = {"source": source, "scale": scale, "set_up_s": time.perf_counter() - began}
            rows.append({**set_up, **_measure(workload, _QUICK_ROUNDS if quick else _ROUNDS)})
    goals = {
        f"share of a step spent on drawing, {row['source']}, {row['scale']} size": {
            "at_most": _GOAL,
            "measured": row["share"],
            "met": row["share"] <= _GOAL,
        }
        for row in rows
    }
    about = {**machine.about("feed", quick=quick, device=device), "threads": torch.get_num_threads()}
    result: dict[str, Any] = rounded(
        {**about, "caveats": list(dict.fromkeys(caveats)), "goals": goals, "rows": rows}
    )
    return result


def _measure(workload: Workload, rounds: int) -> dict[str, Any]:
    """Medians and quartiles over ``rounds`` of A B B A; a share is that of one round."""
    model = workload.build(0).train()
    optimizer = Adam(model.parameters())
    reader = workload.batches(0)
    example = next(workload.batches(1))[0]
    batch = len(example)
    count = max(1, STRETCH // batch)
    finish: Callable[[], object] = torch.cuda.synchronize if example.is_cuda else lambda: None

    def step(drawn: Batch) -> None:
        loss = workload.loss(model, drawn)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    def draw_s() -> float:
        return _seconds(islice(reader, count), lambda _: None, finish)

    def train_s() -> float:
        return _seconds(islice(reader, count), step, finish)

    train_s()  # what is made once is made
    draws, steps, shares = [], [], []
    for _ in range(rounds):
        first, second, third, last = draw_s(), train_s(), train_s(), draw_s()
        draws += [first, last]
        steps += [second, third]
        shares.append((first + last) / (second + third))
    draw, whole = (summary("ms", (1e3 * s / count for s in taken)) for taken in (draws, steps))
    return {
        "batch": batch,
        "parameters": sum(p.numel() for p in model.parameters()),
        "rounds": rounds,
        **{f"step_{key}": value for key, value in whole.items()},
        **{f"draw_{key}": value for key, value in draw.items()},
        **summary("share", shares),
        "drawn_per_s": batch / draw["ms"] * 1e3,
        "trained_per_s": batch / whole["ms"] * 1e3,
    }


def _seconds(batches: Iterator[Batch], use: Callable[[Batch], None], finish: Callable[[], object]) -> float:
    """Of batches drawn and used, to the end of what the device still has to do."""
    finish()
    began = time.perf_counter()
    for drawn in batches:
        use(drawn)
    finish()
    return time.perf_counter() - began


_HEADINGS = ("source", "batch", "parameters", "whole step", "of it drawing", "share", "drawn", "trained")


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["share_iqr"]
    return [
        f"{row['source']}, {row['scale']} size",
        f"{row['batch']}",
        f"{row['parameters'] / 1e3:.0f} k",
        f"{row['step_ms']:.2f} ms",
        f"{row['draw_ms']:.3f} ms",
        f"{row['share']:.1%} ({low:.1%}–{high:.1%})",
        f"{row['drawn_per_s']:,.0f}/s",
        f"{row['trained_per_s']:,.0f}/s",
    ]


def table(result: dict[str, Any]) -> Table:
    """One line for each source and size."""
    from rich.table import Table

    view = Table(*_HEADINGS, title="What drawing the samples costs", caption=" ".join(result["caveats"]))
    for row in result["rows"]:
        view.add_row(*_cells(row))
    return view


def markdown(result: dict[str, Any]) -> str:
    """The same lines for a document, and how they were measured."""
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *map(_cells, result["rows"])]
    note = (
        f"Share of a whole training step (batch, forward, backward, Adam) that is spent on drawing, with "
        f"quartiles; one process, {result['threads']} thread(s); drawn and trained: samples in a second."
    )
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return "\n\n".join([text, " ".join([note, *result["caveats"]])])
