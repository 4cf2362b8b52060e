"""A character-level language model: a small GPT on the text of tinyshakespeare.

The text is cut into 200 blocks; 20 of them are held out and 10 are for the learning-rate probe, drawn at
random, so that all three parts are of the same plays. The loss is the cross-entropy of the next character,
natural logarithm.
"""

from __future__ import annotations

import math
import platform
import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from pydoc_data.topics import topics

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

__all__ = [
    "BLOCKS",
    "FILE",
    "GPT",
    "SIZES",
    "Block",
    "Size",
    "blocks",
    "build",
    "coded",
    "make",
    "make_from_help",
    "make_long",
    "make_overfitting",
    "on_tokens",
    "outputs",
]

FILE = "tinyshakespeare.txt"
BLOCKS, _HELD_OUT_BLOCKS, _PROBE_BLOCKS = 200, 20, 10
_INIT_STD = 0.02
_PROBE_BATCH = 128
# So many batches are drawn at once: a step does not wait for the generator, nor for the copy to the device.
_CHUNK = 64


@dataclass(frozen=True)
class Size:
    """Of a run, of its model and of its batches."""

    steps: int
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    held_out_windows: int
    train_blocks: int = BLOCKS - _HELD_OUT_BLOCKS - _PROBE_BLOCKS
    dropout: float = 0.0


SIZES = {
    "cpu": Size(steps=600, layers=2, width=32, heads=2, context=32, batch=8, held_out_windows=512),
    "gpu": Size(steps=2000, layers=4, width=128, heads=4, context=64, batch=64, held_out_windows=4096),
}
_LONG = {
    "cpu": Size(steps=2000, layers=1, width=32, heads=2, context=16, batch=8, held_out_windows=512),
    "gpu": Size(steps=20_000, layers=2, width=128, heads=4, context=64, batch=32, held_out_windows=4096),
}
# Steps, layers, width, heads, context, batch, as above.
_OVERFITTING = {
    "cpu": Size(*(1000, 2, 64, 4, 16, 16), held_out_windows=1024, train_blocks=1),
    "gpu": Size(*(2000, 4, 128, 4, 64, 32), held_out_windows=4096, train_blocks=16),
}


class Block(nn.Module):
    """Self-attention, then an MLP four times as wide; each behind a LayerNorm and added to its input.

    ``dropout`` is of what is added. ``temperature`` multiplies the attention's logits: 1 is the usual scale,
    one over the root of a head's width.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.temperature = 1.0
        self.dropout = nn.Dropout(dropout)
        self.before_attention = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.before_mlp = nn.LayerNorm(width)
        # The exact GELU's gradient is four times slower on some CPUs, and more than all else in this block.
        gelu = nn.GELU(approximate="tanh")
        wider, back = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.mlp = nn.Sequential(wider, gelu, back)

    def forward(self, x: Tensor, visible: Tensor | None = None) -> Tensor:
        """Each position sees itself and those before it or, where given, those that ``visible`` marks."""
        batch, length, width = x.shape
        parts = self.query_key_value(self.before_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scale = self.temperature / math.sqrt(width // self.heads)
        seen = F.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=visible is None, scale=scale
        )
        x = x + self.dropout(self.attended(seen.transpose(1, 2).reshape(batch, length, width)))
        changed: Tensor = self.dropout(self.mlp(self.before_mlp(x)))
        return x + changed


def init_weights(module: nn.Module) -> None:
    """Matrices and tables from N(0, 0.02²), biases zero; for :meth:`torch.nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


class GPT(nn.Module):
    """Decoder-only transformer, pre-norm, learned positions; dropout after the embeddings and in blocks."""

    def __init__(
        self, characters: int, layers: int, width: int, heads: int, context: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.apply(init_weights)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next character at every position."""
        x = self.dropout(self.character(text) + self.position.weight[: text.shape[1]])
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``tinyshakespeare.txt``, sought where :func:`.base.data_file` says."""
    return _make("charlm", at_scale(SIZES, scale), device, folder)


def make_from_help(scale: str = "cpu", device: str = "cpu") -> Workload:
    """The task from what is on every machine: the help texts of the Python that runs it."""
    raw = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(string.printable) & set(raw))
    workload = on_tokens("helptexts", coded(raw, alphabet), len(alphabet), at_scale(SIZES, scale), device)
    return replace(
        workload,
        caveat=f"There is no {FILE} here, so the text is the help of Python {platform.python_version()}: "
        "losses are not those of the documents (docs/paper.md, Data).",
    )


def make_long(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The same task over many more steps, by a smaller model."""
    return _make("charlm-long", at_scale(_LONG, scale), device, folder)


def make_overfitting(
    device: str = "cpu", folder: str | Path | None = None, *, scale: str = "cpu"
) -> Workload:
    """A wide model on so few blocks that it learns them by heart: a regulariser has something to do."""
    return _make("charlm, few characters", at_scale(_OVERFITTING, scale), device, folder)


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and the characters that were to be foretold, a row for each position."""
    (windows,) = batch
    return model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()


def blocks() -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of the blocks that are held out, of the probe's, and of those to train on."""
    order = torch.randperm(BLOCKS, generator=generator(0, "charlm split"))
    parts = [_HELD_OUT_BLOCKS, _PROBE_BLOCKS, BLOCKS - _HELD_OUT_BLOCKS - _PROBE_BLOCKS]
    held_out, probe, train = torch.split(order, parts)
    return held_out, probe, train


def coded(raw: str, alphabet: list[str]) -> Tensor:
    """Each character as its place in the alphabet; those that it lacks are left out.

    >>> coded("a-cab", ["a", "b", "c"])
    tensor([0, 2, 0, 1])
    """
    code = {character: number for number, character in enumerate(alphabet)}
    return torch.tensor([code[character] for character in raw if character in code])


def build(seed: int, kinds: int, size: Size) -> GPT:
    """The model for so many kinds of tokens."""
    with seeded(seed):
        return GPT(kinds, size.layers, size.width, size.heads, size.context, size.dropout)


def _make(name: str, size: Size, device: str, folder: str | Path | None) -> Workload:
    raw = data_file(FILE, folder).read_text(encoding="utf-8")
    alphabet = sorted(set(raw))
    return on_tokens(name, coded(raw, alphabet), len(alphabet), size, device)


def on_tokens(name: str, tokens: Tensor, kinds: int, size: Size, device: str) -> Workload:
    """The task of foretelling the next token, each a number below ``kinds``, in a text cut into blocks."""
    text = tokens.to(device)
    window = size.context + 1
    length = len(text) // BLOCKS
    held_out_blocks, probe_blocks, train_blocks = blocks()
    held_out_starts, probe_starts, train_starts = (
        (some[:, None] * length + torch.arange(length - window + 1)).flatten()
        for some in (held_out_blocks, probe_blocks, train_blocks[: size.train_blocks])
    )
    windows = text.unfold(0, window, 1)
    probe_windows = (windows[probe_starts[::window].to(device)],)
    # More windows than fit side by side: they start at even distances and overlap.
    evenly = torch.linspace(0, len(held_out_starts) - 1, size.held_out_windows).long()
    held_out_windows = (windows[held_out_starts[evenly].to(device)],)

    def batches(seed: int) -> Iterator[Batch]:
        draw = generator(seed, "charlm batches")
        while True:
            chunk = torch.randint(len(train_starts), (_CHUNK, size.batch), generator=draw)
            for chosen in train_starts[chunk].to(device):
                yield (windows[chosen],)

    return Workload(
        name=name,
        steps=size.steps,
        build=lambda seed: build(seed, kinds, size).to(device),
        loss=_loss,
        batches=batches,
        probe=lambda seed: shuffled(probe_windows, _PROBE_BATCH, generator(seed, "charlm probe")),
        held_out=in_parts(held_out_windows, 256),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(*outputs(model, batch))
