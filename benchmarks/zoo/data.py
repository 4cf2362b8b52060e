"""The data of the zoo: finding a file, reading it, and dividing its rows.

Files lie in ``$HDET_ZOO`` or in ``zoo-data/`` of the checkout and are never committed.
"""

from __future__ import annotations

import gzip
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.zoo.families import FAMILIES, Family
from benchmarks.zoo.task import Batch, Parts

__all__ = [
    "PAD",
    "MissingDataError",
    "arrays",
    "bits",
    "coded",
    "cut",
    "find",
    "lines",
    "missing",
    "scaled",
    "sklearn_set",
    "split",
    "tensor",
    "text",
    "three_parts",
    "vocabulary",
]

_ROOT = Path(__file__).resolve().parents[2]
#: Codes of what is no token, and of one that is not known.
PAD, UNKNOWN = 0, 1


class MissingDataError(FileNotFoundError):
    """Data of a task are not here; says where they come from."""


def find(name: str) -> Path:
    """The file in ``$HDET_ZOO`` or ``zoo-data/``."""
    given = os.environ.get("HDET_ZOO")
    path = (Path(given) if given else _ROOT / "zoo-data") / name
    if not path.is_file():
        source = next(family.source for family in FAMILIES if name in family.files)
        raise MissingDataError(
            f"no file {path}: it was made from {source}; set HDET_ZOO to the folder that holds it"
        )
    return path


def missing(family: Family) -> str:
    """What of a family's data is not here, and where it comes from; empty if all is."""
    if family.source.startswith("scikit-learn") and not find_spec("sklearn"):
        return "scikit-learn is not installed: pip install scikit-learn"
    try:
        for name in family.files:
            find(name)
    except MissingDataError as error:
        return str(error)
    return ""


@cache
def arrays(name: str) -> dict[str, Any]:
    """All arrays of an ``.npz`` file."""
    numpy = import_module("numpy")
    with numpy.load(find(name)) as file:
        return {key: file[key] for key in file.files}


def tensor(array: Any) -> Tensor:
    """Whole numbers as int64, all others as float32."""
    found = torch.as_tensor(array)
    return found.float() if found.is_floating_point() else found.long()


def bits(packed: Any) -> Tensor:
    """Zeros and ones that were packed along the last axis."""
    return torch.from_numpy(import_module("numpy").unpackbits(packed, axis=-1)).float()


def text(name: str) -> str:
    """The whole of a text file."""
    return gzip.decompress(find(name).read_bytes()).decode()


def lines(name: str, *, header: bool = False) -> list[list[str]]:
    """The columns of every line."""
    return [line.split("\t") for line in text(name).split("\n")[int(header) :] if line]


def sklearn_set(name: str) -> tuple[Tensor, Tensor]:
    """Columns and target of a set that scikit-learn brings along, in a random order."""
    try:
        datasets = import_module("sklearn.datasets")
    except ModuleNotFoundError as error:
        raise MissingDataError("these data come with scikit-learn: pip install scikit-learn") from error
    x, y = getattr(datasets, name)(return_X_y=True)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return tensor(x)[order], tensor(y)[order]


def split(*columns: Tensor, probe: float = 0.1, test: float = 0.2, train: int | None = None) -> Parts:
    """First the rows to train on (``train`` of them at most), then the probe's, last those to test."""
    rows = len(columns[0])
    first, last = int(rows * (1 - probe - test)), int(rows * (1 - test))
    return three_parts(
        tuple(column[: min(first, train or first)] for column in columns),
        tuple(column[first:last] for column in columns),
        tuple(column[last:] for column in columns),
    )


def three_parts(train: Sequence[Tensor], probe: Sequence[Tensor], test: Sequence[Tensor]) -> Parts:
    """Parts from sequences of tensors."""
    return Parts(tuple(train), tuple(probe), tuple(test))


def scaled(parts: Parts, *which: int) -> Parts:
    """These columns with mean 0 and deviation 1 over the rows that are trained on."""

    means = {i: parts.train[i].mean(0) for i in which}
    deviations = {i: parts.train[i].std(0) for i in which}
    for deviation in deviations.values():
        deviation[deviation < 1e-6] = 1.0  # a column that does not vary

    def standard(batch: Batch) -> Batch:
        return tuple(
            (part - means[i]) / deviations[i] if i in which else part for i, part in enumerate(batch)
        )

    return Parts(standard(parts.train), standard(parts.probe), standard(parts.test))


def vocabulary(sentences: Iterable[Iterable[str]], most: int | None = None, least: int = 1) -> dict[str, int]:
    """A code for every word that occurs ``least`` times, the most frequent first; 0 and 1 stay free."""
    counts = Counter(word for sentence in sentences for word in sentence)
    known = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
    return {word: code for code, word in enumerate(known[:most], start=UNKNOWN + 1)}


def cut(rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Consecutive rows, so many in each piece."""
    ends = torch.tensor(sizes).cumsum(0)[:-1]
    return list(rows.tensor_split(ends))


def coded(sentences: Iterable[Sequence[str]], codes: dict[str, int], length: int) -> Tensor:
    """One row of codes for each sentence, cut or filled up to ``length``."""
    return torch.tensor(
        [
            [codes.get(word, UNKNOWN) for word in sentence[:length]] + [PAD] * (length - len(sentence))
            for sentence in sentences
        ]
    )
