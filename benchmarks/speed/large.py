"""What AutoLR costs around a large model: a billion parameters in bfloat16, AdamW's moments in float32.

500 steps are told part by part, others in one line each: fewer with all copies in the host's memory, 500 of a
hundred million parameters, and 2,000 of both.

Memory is told in multiples of the weights, on the device alone, with the host's memory used for all copies
and as it is by default, where they stay on a device that has room: at rest, at the end of a window, less what
a forward pass of the probe takes by itself, and while a state is made. Time is told as a share of plain
steps, and where it goes: at the first step of a window (the copy for a rollback), at its last (the probe, the
best weights), at all others (the mean), and the first time that the host's memory is asked for, which is once
a run however long it is. Packing is told as a share of what the device copies in the same time; the
collective between packing and unpacking is left out.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from benchmarks import machine
from benchmarks.machine import rounded
from hdet.autolr.auto_lr import AutoLR
from hdet.probes.probe import Probe
from hdet.replicas.averaging import MOST_MEMORY_BYTES, BucketedMean

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

_MEMORY_GOAL, _TIME_GOAL, _PACKING_GOAL = 1.0, 0.03, 0.8
#: Width, layers, heads, words, tokens of a sequence, sequences of a batch.
_Size = tuple[int, int, int, int, int, int]
_BILLION, _HUNDRED_MILLION = (2048, 18, 16, 32_000, 1024, 8), (640, 12, 10, 32_000, 1024, 8)
_TINY = (64, 2, 2, 128, 16, 2)
#: What is told first, and what beside it: a size, steps of a run, and AutoLR's ``offload``. The second tells
#: the least memory.
_RUNS: dict[str, list[tuple[_Size, int, bool | None]]] = {
    "cpu": [(_TINY, 60, None), (_TINY, 60, True), (_TINY, 80, None)],
    "cuda": [
        (_BILLION, 500, None),
        (_BILLION, 200, True),
        (_HUNDRED_MILLION, 500, None),
        (_HUNDRED_MILLION, 2000, None),
        (_BILLION, 2000, None),
    ],
}
_TRAINED, _HELD_OUT = 8, 32
_PLAIN = {"cpu": 10, "cuda": 40}


class _Layer(nn.Module):
    """Attention and a feed-forward net, each added to what comes in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Causal."""
        parts = self.attend(self.before(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)
        q, k, v = (part.transpose(-2, -3) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-2, -3).flatten(-2)
        x = x + self.join(seen)
        added: Tensor = self.narrow(F.gelu(self.widen(self.between(x))))
        return x + added


class _Transformer(nn.Module):
    """Next words from words."""

    def __init__(self, width: int, layers: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(_Layer(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words))

    def forward(self, words: Tensor) -> Tensor:
        """The loss of every next word."""
        places = torch.arange(words.shape[1] - 1, device=words.device)
        logits = self.head(self.layers(self.word(words[:, :-1]) + self.place(places)))
        return F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())


class _WideMoments(Optimizer):
    """AdamW with moments in float32 beside weights in bfloat16, tensor by tensor."""

    def __init__(self, params: Iterable[Tensor], lr: float) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.95), "weight_decay": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step."""
        for group in self.param_groups:
            (first, second), lr = group["betas"], group["lr"]
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["step"] = 0
                    state["m"] = torch.zeros_like(weight, dtype=torch.float32)
                    state["v"] = torch.zeros_like(weight, dtype=torch.float32)
                state["step"] += 1
                gradient = weight.grad.float()
                state["m"].lerp_(gradient, 1 - first)
                state["v"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
                size = (state["v"] / (1 - second ** state["step"])).sqrt_().add_(1e-8)
                weight.mul_(1 - lr * group["weight_decay"])
                weight.add_(state["m"] / size, alpha=-lr / (1 - first ** state["step"]))


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure on ``device``; without a GPU, or quickly, on a tiny model. The result is plain JSON."""
    say = on_progress or (lambda _: None)
    where = torch.device(device)
    kind = "cuda" if where.type == "cuda" and not quick else "cpu"
    rows, *others = [
        _measured(size, steps, offload, where, _PLAIN[kind], say) for size, steps, offload in _RUNS[kind]
    ]
    packing = rows["packing"]
    goals: dict[str, Any] = {
        f"extra memory on the device {name.replace('_', ' ')}, × the weights": _goal(value, _MEMORY_GOAL)
        for name, value in others[0]["memory_in_weights"].items()
        if value is not None
    }
    goals["more wall-clock than plain training"] = _goal(rows["overhead"], _TIME_GOAL)
    best = max(one["share"] for one in packing)
    goals["packing, of the device's copies"] = {
        "at_least": _PACKING_GOAL,
        "measured": best,
        "met": best >= _PACKING_GOAL,
    }
    about = machine.about("large", quick=quick, device=device)
    for other in others:
        del other["packing"]
    result: dict[str, Any] = rounded({**about, "goals": goals, **rows, "others": others})
    return result


def _measured(
    size: _Size,
    steps: int,
    offload: bool | None,
    where: torch.device,
    plain: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A run of so many steps of a model of this size."""
    width, layers, heads, words, length, sequences = size
    torch.manual_seed(0)
    with where:
        model = _Transformer(width, layers, heads, words, length).to(torch.bfloat16)
        drawn = list(_texts(words, length, sequences))
    parameters = sum(p.numel() for p in model.parameters())
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    say(f"{parameters / 1e6:,.0f} M parameters: plainly, {steps:,} steps with AutoLR, and plainly again")
    measured = _train(model, drawn[:_TRAINED], drawn[_TRAINED:], where, steps, offload, plain)
    packing = _packing([p.detach() for p in model.parameters()], where)
    memory = {name: measured.pop(name) for name in ("at_rest", "at_a_window", "in_state_dict")}
    return {
        "parameters": parameters,
        "weights_bytes": weights,
        "offload": offload,
        **measured,
        "memory_in_weights": {k: None if v is None else v / weights for k, v in memory.items()},
        "packing": packing,
    }


def _texts(words: int, length: int, sequences: int) -> Iterator[Tensor]:
    """Batches of a language that can be learnt: each word has one that follows it, nine times of ten."""
    follows = torch.randperm(words)
    for _ in range(_TRAINED + _HELD_OUT):
        text = [torch.randint(words, (sequences,))]
        for _ in range(length - 1):
            other = torch.rand(sequences) < 0.1
            text.append(torch.where(other, torch.randint(words, (sequences,)), follows[text[-1]]))
        yield torch.stack(text, 1)


def _goal(measured: float, at_most: float) -> dict[str, Any]:
    return {"at_most": at_most, "measured": measured, "met": measured <= at_most}


def _train(
    model: nn.Module,
    batches: list[Tensor],
    held_out: list[Tensor],
    where: torch.device,
    steps: int,
    offload: bool | None,
    plain: int,
) -> dict[str, Any]:
    """Seconds of plain steps before and after, and of a whole run; bytes on the device where it counts."""
    watch = _Memory(where)
    optimizer = _WideMoments(model.parameters(), lr=1e-4)

    def step() -> None:
        batches.append(batches.pop(0))
        model(batches[-1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(3):
        step()  # what is made once is made
    before = [_seconds(step, watch.wait) for _ in range(plain)]
    with torch.no_grad():
        forward = watch.peak(lambda: model(batches[0]))
    rest = watch.now()
    optimizer.state.clear()  # a run begins without moments
    found = _searched(model, held_out, optimizer, step, steps, offload, watch, (rest, forward))
    median = statistics.median(before + [_seconds(step, watch.wait) for _ in range(plain)])
    taken = found.pop("taken")
    return {
        "step_ms": 1e3 * median,
        "overhead": math.fsum(taken) / (steps * median) - 1,
        "where": _where(taken, median, found.pop("ends")),
        **found,
    }


def _where(taken: Sequence[float], plain: float, ends: Sequence[int]) -> dict[str, float]:
    """What each kind of step takes longer than a plain one, in all, as a share of plain training."""
    ended, began = set(ends), {0, *(end + 1 for end in ends)}
    more = [seconds - plain for seconds in taken]
    usual = {
        name: statistics.median([more[i] for i in steps if i < len(more)] or [0.0])
        for name, steps in {"began": began, "ended": ended}.items()
    }
    # Memory is first asked for at the first two windows' starts (the second has an optimizer's state) and
    # where weights are kept for the first time.
    once = [(i, usual["began"]) for i in sorted(began)[:2]] + [(i, usual["ended"]) for i in sorted(ended)[:2]]
    first = math.fsum(max(0.0, more[i] - expected) for i, expected in once)
    total = len(taken) * plain
    of_kind = {
        "first steps of windows": began,
        "last steps of windows": ended - began,
        "other steps": set(range(len(taken))) - began - ended,
    }
    return {
        **{
            name: math.fsum(more[i] for i in steps if i < len(more)) / total
            for name, steps in of_kind.items()
        },
        "of them memory of the host, once": first / total,
    }


def _searched(
    model: nn.Module,
    held_out: list[Tensor],
    optimizer: Optimizer,
    step: Callable[[], None],
    steps: int,
    offload: bool | None,
    watch: _Memory,
    known: tuple[int, int],
) -> dict[str, Any]:
    """A run with AutoLR; ``known`` are the bytes of training itself, and of one forward pass."""
    training, forward = known
    probe = Probe(lambda words: model(words), held_out, model=model)
    auto = AutoLR(optimizer, total_steps=steps, probe=probe, offload=offload)
    at_rest, at_window, ends = 0, 0, list[int]()
    taken: list[float] = []
    records: list[Any] = []
    for i in range(steps):
        there, both = watch.now(), [_seconds(step, watch.wait)]
        peak = watch.peak(partial(_timed, auto.step, watch.wait, both, records))
        taken.append(math.fsum(both))
        if records[-1] is None:
            at_rest = max(at_rest, watch.now() - training)
        else:
            ends.append(i)
            at_window = max(at_window, there + peak - training - forward)
    state = at_rest + watch.peak(auto.state_dict)
    memory = {"at_rest": at_rest, "at_a_window": at_window, "in_state_dict": state}
    return {
        **{"steps": steps, "windows": len(ends), "taken": taken, "ends": ends},
        "everywhere_bytes": auto.extra_bytes(),
        **{name: value if watch.counts else None for name, value in memory.items()},
    }


class _Memory:
    """What is allocated on a GPU; elsewhere nothing is counted."""

    def __init__(self, where: torch.device) -> None:
        self.counts = where.type == "cuda"

    def wait(self) -> None:
        """For the device."""
        if self.counts:
            torch.cuda.synchronize()

    def now(self) -> int:
        """Bytes."""
        return torch.cuda.memory_allocated() if self.counts else 0

    def peak(self, work: Callable[[], object]) -> int:
        """The most that ``work`` had at a time above what was there before."""
        if not self.counts:
            work()
            return 0
        torch.cuda.reset_peak_memory_stats()
        before = self.now()
        work()
        return torch.cuda.max_memory_allocated() - before


def _packing(weights: list[Tensor], where: torch.device) -> list[dict[str, Any]]:
    """By the memory of the buckets: bytes read and written in a second, as a share of a copy's."""
    wait = _Memory(where).wait
    numel = sum(weight.numel() for weight in weights)
    limit = _copied_bytes_a_second(min(numel, 1 << 28), where, wait)
    found = []
    for memory in (48 << 20, MOST_MEMORY_BYTES):
        mean = BucketedMean(weights, size=2, all_reduce=lambda _: lambda: None, memory_bytes=memory)
        mean()
        seconds = statistics.median(_seconds(mean, wait) for _ in range(5))
        # Packed: 2 bytes read, 4 written; halved: 4 and 4; unpacked: 4 and 2.
        moved = 20 * numel
        found.append({"bucket_memory": memory, "seconds": seconds, "share": moved / seconds / limit})
        del mean
    return found


def _copied_bytes_a_second(numel: int, where: torch.device, wait: Callable[[], object]) -> float:
    one = torch.zeros(numel, dtype=torch.float32, device=where)
    other = torch.empty_like(one)
    seconds = statistics.median(_seconds(lambda: other.copy_(one), wait) for _ in range(7))
    return 2 * numel * one.element_size() / seconds


def _timed(
    work: Callable[[], object], wait: Callable[[], object], seconds: list[float], results: list[Any]
) -> None:
    """What it returns, and how long it took, without what counting memory takes."""
    seconds.append(_seconds(lambda: results.append(work()), wait))


def _seconds(work: Callable[[], object], wait: Callable[[], object]) -> float:
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def _lines(result: dict[str, Any]) -> list[tuple[str, str]]:
    memory = result["memory_in_weights"]
    told = [(name.replace("_", " "), value) for name, value in memory.items() if value is not None]
    lines = [(f"extra memory on the device, {name}", f"{value:.2f} × the weights") for name, value in told]
    lines.append(
        ("everywhere, with the host's", f"{result['everywhere_bytes'] / result['weights_bytes']:.1f} ×")
    )
    lines.append((f"more wall-clock, {result['steps']} steps", f"{100 * result['overhead']:.1f} %"))
    lines += [(f"– {name}", f"{100 * share:.1f} %") for name, share in result["where"].items()]
    for one in result["packing"]:
        name = f"packing in buckets of {one['bucket_memory'] >> 20} MB in all"
        lines.append((name, f"{100 * one['share']:.0f} % of the device's copies"))
    for other in result.get("others", ()):
        about = f"{other['parameters'] / 1e6:,.0f} M parameters, {other['steps']:,} steps of"
        host = ", copies with the host" if other["offload"] else ""
        name = f"{about} {other['step_ms']:.0f} ms, {other['windows']} windows{host}: more wall-clock"
        lines.append((name, f"{100 * other['overhead']:.1f} %"))
        rest = other["memory_in_weights"]["at_rest"]
        if rest is not None:
            lines.append(("its extra memory on the device, at rest", f"{rest:.2f} × the weights"))
    return lines


def _title(result: dict[str, Any]) -> str:
    return (
        f"AutoLR around {result['parameters'] / 1e6:,.0f} M parameters in bfloat16, "
        f"{result['windows']} windows, a plain step of {result['step_ms']:.0f} ms"
    )


def table(result: dict[str, Any]) -> Table:
    """A line for each number."""
    from rich.table import Table

    view = Table("what", "measured", title=_title(result))
    for line in _lines(result):
        view.add_row(*line)
    return view
