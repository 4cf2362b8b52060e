"""Training that begins from weights trained before, or from another model's answers.

What came before is trained once in every process, from a seed that no run has, never on rows of the probe or
of the test.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator, seeded, shuffled
from benchmarks.workloads.tuned import LowRank
from benchmarks.zoo.data import coded, lines, scaled, split, text, vocabulary
from benchmarks.zoo.images import grey
from benchmarks.zoo.models import Encoder, cross_entropy, images_net, squares
from benchmarks.zoo.task import Batch, Loss, Parts, Setting, Task, on_device, setting, task

__all__ = ["PRETRAINING_STEPS", "TASKS"]

PRETRAINING_STEPS = 400
_Model = TypeVar("_Model", bound=nn.Module)
_BEFORE = 700_001
_LENGTH = 64


def _trained(model: _Model, rows: Batch, loss: Loss, batch: int) -> _Model:
    """The model after some steps of AdamW whose rate falls to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step, given in enumerate(
        islice(shuffled(rows, batch, generator(_BEFORE, "zoo before")), PRETRAINING_STEPS)
    ):
        optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / PRETRAINING_STEPS)
        optimizer.zero_grad()
        loss(model, given).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


# ---------------------------------------------------------------------- pictures of clothes


def _clothes(first: bool) -> Parts:
    """The first five classes, which the body is trained on, or 300 pictures of the others."""
    parts = grey("img_fashion3600.npz")

    def some(part: Batch) -> Batch:
        rows = torch.nonzero((part[1] < 5) == first).flatten()
        return part[0][rows], part[1][rows] % 5

    train = some(parts.train)
    return Parts(train if first else tuple(one[:300] for one in train), some(parts.probe), some(parts.test))


_first_clothes, _other_clothes = partial(_clothes, True), partial(_clothes, False)


@cache
def _clothes_body(device: str) -> nn.Sequential:
    with seeded(_BEFORE):
        model = images_net(1, 32, 64, 64, outputs=5).to(device)
    return _trained(model, on_device(_first_clothes, device).train, cross_entropy, 64)


class _Frozen(nn.Module):
    """A body that is not trained, its running statistics included."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> _Frozen:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def _clothes_task(name: str, steps: int, batch: int, *, frozen: bool) -> Task:
    """The body with a new head, trained as a whole or below the head not at all."""

    def build(seed: int, device: str) -> Setting:
        body = deepcopy(_clothes_body(device))[:-1]
        with seeded(seed):
            head = nn.Linear(64, 5).to(device)
        model = nn.Sequential(_Frozen(body) if frozen else body, head)
        return setting(model, cross_entropy, on_device(_other_clothes, device), batch, seed)

    return Task(name, "clothes", steps, build)


# ---------------------------------------------------------------------- molecules


@cache
def _letters() -> dict[str, int]:
    return vocabulary(text("lm_smiles.txt.gz").split("\n"))


def _smiles(found: list[str]) -> Tensor:
    return coded(found, _letters(), _LENGTH)


def _molecules(file: str, train: int | None = None) -> Parts:
    """A property, standardised."""
    rows = lines(file, header=True)
    values = torch.tensor([float(row[1]) for row in rows])
    return scaled(split(_smiles([row[0] for row in rows]), values, train=train), 1)


def _toxicity() -> Parts:
    """Twelve labels, −1 where nobody measured."""
    rows = lines("mol_tox21.tsv.gz", header=True)
    labels = [[float(one) if one else -1.0 for one in row[1:13]] + [-1.0] * (13 - len(row)) for row in rows]
    return split(_smiles([row[0] for row in rows]), torch.tensor(labels))


def _measured(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy over the labels that are known."""
    smiles, labels = batch
    known = labels >= 0
    losses = F.binary_cross_entropy_with_logits(model(smiles), labels.clamp_min(0), reduction="none")
    return (losses * known).sum() / known.sum().clamp_min(1)


class _Letters(nn.Module):
    """Convolutions along the string, their maximum, a linear head."""

    def __init__(self, outputs: int, width: int = 64) -> None:
        super().__init__()
        self.letter = nn.Embedding(64, width)
        self.body = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2), nn.ReLU()
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, smiles: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.letter(smiles).transpose(1, 2)).amax(2))
        return out


def _counted() -> Parts:
    """Strings without a label, and how often each of the 16 commonest letters occurs."""
    smiles = _smiles(text("lm_smiles.txt.gz").split("\n")[:12_000])
    counts = torch.stack([(smiles == code).sum(1) for code in range(2, 18)], 1).float()
    return scaled(split(smiles, counts), 1)


@cache
def _molecule_body(device: str) -> nn.Module:
    """An encoder that has learnt to count letters."""
    with seeded(_BEFORE):
        model = Encoder(64, 16, _LENGTH, tokens=64).to(device)
    return _trained(model, on_device(_counted, device).train, squares, 64)


def _whole(model: nn.Module) -> None:
    """Everything is trained."""


def _low_rank(model: nn.Module) -> None:
    """Nothing of the body is trained but narrow layers beside its own."""
    model.requires_grad_(False)
    for block in model.blocks:  # type: ignore[union-attr]
        block.query_key_value = LowRank(block.query_key_value)
        block.attended = LowRank(block.attended)


def _molecule_task(
    name: str, steps: int, batch: int, data: Callable[[], Parts], change: Callable[[nn.Module], None]
) -> Task:
    def build(seed: int, device: str) -> Setting:
        model = deepcopy(_molecule_body(device))
        with seeded(seed):
            change(model)
            model.head = nn.Linear(64, 1)
        return setting(model.to(device), squares, on_device(data, device), batch, seed)

    return Task(name, "molecules", steps, build)


# ---------------------------------------------------------------------- another model's answers

_fonts = partial(grey, "img_notmnist10k.npz")


@cache
def _font_teacher(device: str) -> nn.Module:
    with seeded(_BEFORE):
        model = images_net(1, 32, 64, 64, outputs=10).to(device)
    return _trained(model, on_device(_fonts, device).train, cross_entropy, 64).eval()


@cache
def _answers(device: str) -> Parts:
    """Pictures, and the teacher's logits at a temperature of 2."""
    teacher, parts = _font_teacher(device), on_device(_fonts, device)

    def answered(part: Batch) -> Batch:
        with torch.no_grad():
            return part[0], torch.cat([teacher(some) / 2 for some in part[0].tensor_split(10)])

    return Parts(answered(parts.train), answered(parts.probe), answered(parts.test))


def _like_the_teacher(model: nn.Module, batch: Batch) -> Tensor:
    """Kullback–Leibler's divergence from the teacher, which is zero at best."""
    pictures, answers = batch
    student = (model(pictures) / 2).log_softmax(1)
    return F.kl_div(student, answers.log_softmax(1), reduction="batchmean", log_target=True)


def _distilled(seed: int, device: str) -> Setting:
    with seeded(seed):
        student = images_net(1, 8, 16, 32, outputs=10, norm=False).to(device)
    return setting(student, _like_the_teacher, _answers(device), 128, seed)


TASKS: tuple[Task, ...] = (
    _clothes_task("clothes-fine-tuned", 300, 16, frozen=False),
    _clothes_task("clothes-frozen-body", 300, 32, frozen=True),
    task(
        "lipophilicity-from-scratch",
        "molecules",
        800,
        data=partial(_molecules, "mol_lipophilicity.tsv.gz"),
        model=lambda: _Letters(1),
        loss=squares,
        batch=64,
    ),
    task(
        "toxicity-many-labels",
        "molecules",
        800,
        data=_toxicity,
        model=lambda: _Letters(12),
        loss=_measured,
        batch=64,
    ),
    _molecule_task(
        "solubility-fine-tuned", 400, 16, partial(_molecules, "mol_esol.tsv.gz", train=500), _whole
    ),
    _molecule_task(
        "lipophilicity-low-rank", 400, 32, partial(_molecules, "mol_lipophilicity.tsv.gz"), _low_rank
    ),
    Task("fonts-distilled", "font-letters", 600, _distilled, floor=0.01),
)
