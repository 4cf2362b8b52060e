"""A word-level language model: charlm's GPT, with dropout, on the words of tinyshakespeare; it overfits.

Tokens are words in lower case and signs of punctuation. Those known are the most frequent 4,000 of the
training blocks, the others are one. The run goes over the training blocks, or some of them, about 17 times.
The parts are drawn as charlm's are.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import torch

import benchmarks.workloads.charlm as charlm
from benchmarks.workloads.base import Workload, at_scale, data_file

__all__ = ["make"]

_TOKEN = re.compile(r"[a-z']+|[^a-z'\s]")
_KNOWN = 4000
_UNKNOWN = 0
# Steps, layers, width, heads, context, batch.
_SIZES = {
    "cpu": charlm.Size(700, 1, 32, 2, 16, 8, held_out_windows=256, train_blocks=4, dropout=0.1),
    "gpu": charlm.Size(1800, 4, 128, 4, 64, 32, held_out_windows=2048, dropout=0.1),
}


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``tinyshakespeare.txt``, sought where :func:`.base.data_file` says."""
    size = at_scale(_SIZES, scale)
    words = _TOKEN.findall(data_file(charlm.FILE, folder).read_text(encoding="utf-8").lower())
    length = len(words) // charlm.BLOCKS
    _, _, train = charlm.blocks()
    counts = Counter[str]()
    for block in train[: size.train_blocks].tolist():
        counts.update(words[block * length : (block + 1) * length])
    code = {word: number for number, (word, _) in enumerate(counts.most_common(_KNOWN), start=_UNKNOWN + 1)}
    tokens = torch.tensor([code.get(word, _UNKNOWN) for word in words])
    return charlm.on_tokens("wordlm", tokens, _UNKNOWN + 1 + len(code), size, device)
