"""The tasks, on each of which training goes over few samples many times, and the places where values stand.

So dropout, label smoothing or weight decay matter: where nothing is against it, the samples are learned by
heart. Each task has three parts that share no sample: to train on, the probe's, by which every method
chooses, and those of the test, which no method's choice has seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW

from benchmarks.autotune.space import Setting
from benchmarks.workloads import Batch, Workload, charlm, digits, images, newsfeed, sentences, wordlm

__all__ = ["TASKS", "SmoothedBinary", "Task", "batch_size", "optimizer_of", "put", "workload"]


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
    outputs: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss


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
