"""The tasks, and the places where values stand.

Six are our own: training goes over few samples many times, so dropout, label smoothing or weight decay
matter. Six are of the zoo's test families, drawn by a hash: beside the learning rate, weight decay is tuned.
Each task has three parts that share no sample: to train on, the probe's, by which every method chooses, and
those of the test, which no method's choice has seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import cycle

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from benchmarks.autotune.space import RANGES, Range, Setting
from benchmarks.workloads import Batch, Workload, charlm, digits, images, newsfeed, sentences, wordlm
from benchmarks.zoo import catalogue as zoo
from benchmarks.zoo.families import SALT, part_of

__all__ = [
    "FROM_ZOO",
    "TASKS",
    "SmoothedBinary",
    "Task",
    "batch_size",
    "drawn_from_zoo",
    "optimizer_of",
    "put",
    "workload",
]


class SmoothedBinary(nn.Module):
    """The newsfeed's loss: the sum over its three answers of the mean binary cross-entropy.

    As in ``nn.CrossEntropyLoss``, ``label_smoothing`` is the share of the target that is spread over both
    classes.
    """

    def __init__(self, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of a batch."""
        if self.label_smoothing:
            targets = targets * (1 - self.label_smoothing) + 0.5 * self.label_smoothing
        return F.binary_cross_entropy_with_logits(logits, targets) * len(newsfeed.TASKS)


@dataclass(frozen=True)
class Task:
    """A workload, and the criterion that it is trained by; the probe and the test know no smoothing."""

    #: From scale and device.
    make: Callable[[str, str], Workload]
    #: From model and batch to what the criterion takes.
    outputs: Callable[[nn.Module, Batch], tuple[Tensor, ...]]
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss
    #: What there is to tune.
    tuned: tuple[str, ...] = tuple(RANGES)

    @property
    def ranges(self) -> dict[str, Range]:
        """Of what is tuned."""
        return {name: RANGES[name] for name in self.tuned}


class Given(nn.Module):
    """The criterion of a task whose loss is already what the model's outputs are: nothing to smooth."""

    label_smoothing = 0.0

    def forward(self, loss: Tensor) -> Tensor:
        """The loss itself."""
        return loss


#: What :func:`drawn_from_zoo` draws.
FROM_ZOO = (
    "clothes-frozen-body",
    "forest-one-pass",
    "genres-raw-columns",
    "houses-raw-dollars",
    "mammography-rare",
    "fonts-batch-norm",
)


def drawn_from_zoo(count: int) -> list[str]:
    """The first tasks of the zoo's test families by a hash, one of a family.

    Those can be compared here that AdamW trains, whose loss is a mean over rows, of whose batches eight are
    not more than all rows, and whose steps can be cut into ten parts.
    """
    names = [name for name, known in zoo.TASKS.items() if part_of(known.family) == "test"]
    names.sort(key=lambda name: hashlib.sha256(f"{SALT} autotune {name}".encode()).digest())
    drawn: dict[str, str] = {}
    for name in names:
        known = zoo.TASKS[name]
        if len(drawn) == count:
            break
        if known.family in drawn or known.steps % 10 or "adamw" not in known.optimizers:
            continue
        setting = known.build(0, "cpu")
        if setting.additive and 8 * len(setting.batches()[0]) <= setting.rows:
            drawn[known.family] = name
    return [*drawn.values()]


def _from_zoo(task: str) -> Task:
    known = zoo.TASKS[task]

    def make(scale: str, device: str) -> Workload:
        first = known.build(0, device)
        assert isinstance(first.loss_fn, partial)
        return Workload(
            name=task,
            steps=known.steps,
            build=lambda seed: known.build(seed, device).model,
            loss=first.loss_fn.func,
            batches=lambda seed: _endless(known.build(seed, device).batches),
            probe=lambda seed: cycle(first.held_out),
            held_out=tuple(first.test),
        )

    def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        return (workload(task, "cpu", str(batch[0].device)).loss(model, batch),)

    return Task(make, outputs, Given, ("lr", "weight_decay"))


def _endless(draw: Callable[[], Batch]) -> Iterator[Batch]:
    while True:
        yield draw()


def _shorter(make: Callable[..., Workload], steps: int) -> Callable[[str, str], Workload]:
    """The same, but a run on a CPU has so many steps: there are hundreds of runs."""

    def made(scale: str, device: str) -> Workload:
        whole = make(device=device, scale=scale)
        return replace(whole, steps=steps) if scale == "cpu" else whole

    return made


TASKS: dict[str, Task] = {
    "digits": Task(_shorter(partial(digits.make_noisy, dropout=0.0), 1000), digits.outputs),
    "sentences": Task(sentences.make, sentences.outputs),
    "charlm": Task(_shorter(charlm.make_overfitting, 500), charlm.outputs),
    "wordlm": Task(_shorter(wordlm.make, 500), charlm.outputs),
    "newsfeed": Task(_shorter(newsfeed.make_few, 600), newsfeed.outputs, SmoothedBinary),
    "images": Task(partial(images.make_few, dropout=0.0), images.outputs),
    **{name: _from_zoo(name) for name in FROM_ZOO},
}


@cache
def workload(task: str, scale: str, device: str) -> Workload:
    """The task's workload, made once in a process."""
    return TASKS[task].make(scale, device)


def batch_size(work: Workload) -> int:
    """How many samples a step trains on."""
    return len(next(work.batches(0))[0])


def optimizer_of(model: nn.Module) -> AdamW:
    """AdamW as torch makes it; :func:`put` gives it learning rate and decay."""
    return AdamW(model.parameters(), fused=True)


def put(setting: Setting, model: nn.Module, optimizer: AdamW, criterion: nn.Module) -> None:
    """Write all values but the learning rate, which follows a schedule, where they stand."""
    for group in optimizer.param_groups:
        group["weight_decay"] = setting.weight_decay
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = setting.dropout
    criterion.label_smoothing = setting.label_smoothing  # type: ignore[assignment]
