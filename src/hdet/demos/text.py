"""A small language model with nothing to download: Python's own help texts, which every installation has."""

from __future__ import annotations

import string
from pydoc_data.topics import topics

from hdet.bench.workloads.base import Workload
from hdet.bench.workloads.charlm import Size, coded, on_tokens

__all__ = ["make"]

_SIZE = Size(steps=500, layers=2, width=32, heads=2, context=32, batch=16, held_out_windows=512)


def make() -> Workload:
    """The next character of the language reference, by a GPT of thirty thousand weights."""
    raw = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(string.printable) & set(raw))
    return on_tokens("Python's help texts", coded(raw, alphabet), len(alphabet), _SIZE, "cpu")
