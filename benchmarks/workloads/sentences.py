"""Sentences of film reviews and of plot summaries: which of the two is this one? It overfits in a few passes.

Word embeddings, one convolution over three words at a time, the maximum over the sentence, dropout, a linear
layer. Of 10,000 sentences 2,000 are held out and 1,000 are the probe's; the run goes over the others, or some
of them, about fifteen times. Words are those of the training sentences; all that come once are one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import (
    Batch,
    Workload,
    at_scale,
    data_file,
    generator,
    in_parts,
    seeded,
    shuffled,
)

__all__ = ["FILE", "SentenceModel", "load", "make", "outputs"]

FILE = "subjectivity.tsv"
_LABELS = ("objective", "subjective")
_HELD_OUT, _PROBE = 2000, 1000
_PROBE_BATCH = 256
#: A longer sentence is cut, a shorter one filled up.
_WORDS = 40
_NO_WORD, _UNKNOWN = 0, 1
_AT_ONCE = 3
_INIT_STD = 0.1


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    width: int
    #: To train on.
    sentences: int


_SIZES = {
    "cpu": _Size(steps=1000, batch=16, width=32, sentences=1000),
    "gpu": _Size(steps=3300, batch=32, width=128, sentences=7000),
}


class SentenceModel(nn.Module):
    """Embeddings, a convolution over neighbouring words, the maximum over all places, two logits."""

    def __init__(self, words: int, width: int, dropout: float = 0.3) -> None:
        super().__init__()
        self.word = nn.Embedding(words, width)
        self.neighbours = nn.Conv1d(width, width, _AT_ONCE, padding=_AT_ONCE // 2)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, len(_LABELS))
        nn.init.normal_(self.word.weight, std=_INIT_STD)

    def forward(self, sentences: Tensor) -> Tensor:
        seen = F.relu(self.neighbours(self.word(sentences).transpose(1, 2))).amax(2)
        logits: Tensor = self.head(self.dropout(seen))
        return logits


def load(path: Path) -> list[tuple[int, str]]:
    """Label and text of every sentence, in the order of the file, which is that of the labels."""
    lines = path.read_text(encoding="utf-8").split("\n")[1:]
    pairs = (line.split("\t") for line in lines if line)
    return [(_LABELS.index(label), sentence) for label, sentence in pairs]


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``subjectivity.tsv`` (:func:`.base.data_file` says where it is sought)."""
    size = at_scale(_SIZES, scale)
    labelled = load(data_file(FILE, folder))
    texts = [sentence.split()[:_WORDS] for _, sentence in labelled]
    order = torch.randperm(len(texts), generator=generator(0, "sentences split"))
    held_out, probe, train = torch.split(order, [_HELD_OUT, _PROBE, len(order) - _HELD_OUT - _PROBE])
    train = train[: size.sentences]

    counts = Counter(word for row in train.tolist() for word in texts[row])
    known = sorted((word for word, count in counts.items() if count > 1), key=lambda word: -counts[word])
    code = {word: number for number, word in enumerate(known, start=_UNKNOWN + 1)}
    coded = torch.tensor(
        [[code.get(word, _UNKNOWN) for word in text] + [_NO_WORD] * (_WORDS - len(text)) for text in texts]
    )
    labels = torch.tensor([label for label, _ in labelled])

    def part(rows: Tensor) -> Batch:
        return coded[rows].to(device), labels[rows].to(device)

    train_part, probe_part = part(train), part(probe)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return SentenceModel(_UNKNOWN + 1 + len(known), size.width).to(device)

    return Workload(
        name="sentences",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=lambda seed: shuffled(train_part, size.batch, generator(seed, "sentences batches")),
        probe=lambda seed: shuffled(probe_part, _PROBE_BATCH, generator(seed, "sentences probe")),
        held_out=in_parts(part(held_out), 500),
    )


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels, a row for each sentence."""
    sentences, labels = batch
    return model(sentences), labels


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(*outputs(model, batch))
