"""What ``hdet demo`` trains on: Python's help texts and scikit-learn's digits. Nothing is downloaded."""

from __future__ import annotations

import math
import string
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from hdet.probes import Probe

__all__ = ["Batch", "Task", "digits", "help_texts"]

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A model, and samples to train on, to probe and to test with; all are functions of a seed."""

    make_model: Callable[[], nn.Module]
    #: From a seed to endless batches.
    batches: Callable[[int], Iterator[Batch]]
    probe_batches: Callable[[int], Iterator[Batch]]
    test: Batch

    def model(self, seed: int) -> nn.Module:
        """A new model; torch's own random state is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self.make_model()

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy."""
        return F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())

    def probe(self, model: nn.Module, seed: int) -> Probe:
        """Asks for its batches by number."""
        batches, drawn = self.probe_batches(seed), list[Batch]()

        def batch(k: int) -> Batch:
            drawn.extend(islice(batches, max(0, k + 1 - len(drawn))))
            return drawn[k]

        return Probe(lambda batch: self.loss(model, batch), batch, model=model)

    def training(self, model: nn.Module, optimizer: Optimizer, batches: Iterable[Batch]) -> Iterator[Tensor]:
        """One optimizer step for each batch; its loss."""
        for batch in batches:
            optimizer.zero_grad()
            loss = self.loss(model, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            yield loss

    @torch.no_grad()
    def held_out(self, model: nn.Module, seed: int) -> float | None:
        """The loss on the batches by which a probe chooses; None, as in a history, if it is not finite."""
        batches = [*islice(self.probe_batches(seed), 4)]
        loss = sum(float(self.loss(model, batch)) for batch in batches) / len(batches)
        return loss if math.isfinite(loss) else None

    @torch.no_grad()
    def test_loss(self, model: nn.Module) -> float:
        """The loss on the test samples."""
        return float(self.loss(model.eval(), self.test))


def _generator(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{purpose}/{seed}".encode()))


def _shuffled(samples: Batch, size: int, draw: torch.Generator) -> Iterator[Batch]:
    """Endless batches, each pass in a new order."""
    rows = len(samples[0])
    while True:
        order = torch.randperm(rows, generator=draw)
        for start in range(0, rows - size + 1, size):
            chosen = order[start : start + size]
            yield samples[0][chosen], samples[1][chosen]


class _Block(nn.Module):
    """Pre-norm self-attention, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_2 = nn.LayerNorm(width)
        wider, back = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.mlp = nn.Sequential(wider, nn.GELU(approximate="tanh"), back)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.query_key_value(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        changed: Tensor = self.mlp(self.norm_2(x))
        return x + changed


class _GPT(nn.Module):
    """The next character at every position, by thirty thousand weights."""

    def __init__(self, characters: int, context: int, width: int = 32) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(_Block(width, heads=2), _Block(width, heads=2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        x: Tensor = self.blocks(self.character(text) + self.position.weight)
        logits: Tensor = self.head(self.norm(x))
        return logits


def help_texts() -> Task:
    """Python's language reference, in 200 blocks: 170 to train on, 10 for the probe, 20 to test with."""
    raw = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(string.printable) & set(raw))
    code = {character: number for number, character in enumerate(alphabet)}
    text = torch.tensor([code[character] for character in raw if character in code])
    context, length = 32, len(text) // 200
    windows = text.unfold(0, context + 1, 1)
    blocks = torch.randperm(200, generator=_generator(0, "charlm split"))
    starts = blocks[:, None] * length + torch.arange(length - context)
    test, probe, train = starts[:20].flatten(), starts[20:30].flatten(), starts[30:].flatten()

    def at(chosen: Tensor) -> Batch:
        return windows[chosen, :-1], windows[chosen, 1:]

    def batches(seed: int) -> Iterator[Batch]:
        draw = _generator(seed, "charlm batches")
        while True:
            yield at(train[torch.randint(len(train), (32,), generator=draw)])

    return Task(
        lambda: _GPT(len(alphabet), context),
        batches,
        lambda seed: _shuffled(at(probe[:: context + 1]), 64, _generator(seed, "charlm probe")),
        at(test[torch.linspace(0, len(test) - 1, 512).long()]),
    )


def digits() -> Task:
    """8×8 digits and an MLP: 449 to test with, 512 for the probe, 600 to train on. A fifth of all labels is
    drawn at random."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("hdet demo needs scikit-learn: pip install 'hdet[cli]'") from error
    raw, draw = load_digits(), _generator(0, "digits label noise")
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.from_numpy(raw.data).float()[order] / 16, torch.from_numpy(raw.target).long()[order]
    for labels in (y[449:], y[:449]):
        others = torch.randint(10, labels.shape, generator=draw)
        wrong = torch.rand(labels.shape, generator=draw) < 0.2
        labels[wrong] = others[wrong]
    test, probe, train = ((x[a:b], y[a:b]) for a, b in ((0, 449), (449, 961), (961, 1561)))

    def mlp() -> nn.Module:
        hidden = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        return nn.Sequential(*hidden, nn.Linear(256, 10))

    return Task(
        mlp,
        lambda seed: _shuffled(train, 64, _generator(seed, "digits batches")),
        lambda seed: _shuffled(probe, 64, _generator(seed, "digits probe")),
        test,
    )
