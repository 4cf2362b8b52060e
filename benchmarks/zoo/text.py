"""Words and characters: classes, pairs, tags, answers, sequences from sequences, the next character."""

from __future__ import annotations

from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.workloads.charlm import GPT
from benchmarks.zoo.data import PAD, coded, lines, split, text, three_parts, vocabulary
from benchmarks.zoo.models import Encoder, Recurrent, Words, cross_entropy, mlp, yes_or_no
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS", "characters"]

_IGNORED = -100


# ---------------------------------------------------------------------- one label for a text


def _messages() -> Parts:
    found = [(row[0], row[1].lower().split()) for row in lines("text_sms_spam.tsv.gz")]
    words = vocabulary((message for _, message in found), most=3998)
    labels = torch.tensor([float(label == "spam") for label, _ in found])
    return split(coded((message for _, message in found), words, 40), labels)


def _attachments() -> Parts:
    found = {part: lines(f"cat_ppattach_{part}.tsv.gz") for part in ("train", "valid", "test")}
    words = vocabulary((row[1:] for row in found["train"]), most=7998)

    def rows(part: str) -> tuple[Tensor, Tensor]:
        labels = torch.tensor([float(row[0] == "N") for row in found[part]])
        return coded((row[1:] for row in found[part]), words, 4), labels

    return three_parts(rows("train"), rows("valid"), rows("test"))


def _names() -> Parts:
    found = lines("char_names18.tsv.gz")
    letters, languages = vocabulary(name for _, name in found), sorted({language for language, _ in found})
    labels = torch.tensor([languages.index(language) for language, _ in found])
    return split(coded((name for _, name in found), letters, 16), labels)


def _stories() -> Parts:
    """The question first, then the story, whose last words tell."""

    def rows(part: str) -> list[tuple[str, list[str]]]:
        found = lines(f"qa_babi1_{part}.tsv.gz")
        return [(row[0], f"{row[1]} {row[2]}".replace(".", "").replace("?", "").split()) for row in found]

    train, test = rows("train"), rows("test")
    words, places = vocabulary(story for _, story in train), sorted({answer for answer, _ in train})

    def part(found: list[tuple[str, list[str]]]) -> tuple[Tensor, Tensor]:
        answers = torch.tensor([places.index(answer) for answer, _ in found])
        return coded((story for _, story in found), words, 66), answers

    return three_parts(part(train[:8000]), part(train[8000:]), part(test))


# ---------------------------------------------------------------------- pairs

_RELATIONS = ("NEUTRAL", "ENTAILMENT", "CONTRADICTION")


def _pairs() -> Parts:
    """Two sentences, how related they are from 0 to 1, and in which way."""
    found = lines("pair_sick.tsv.gz", header=True)
    sentences = [[row[i].lower().split() for row in found] for i in (2, 3)]
    words = vocabulary(sentences[0] + sentences[1])
    return split(
        *(coded(side, words, 24) for side in sentences),
        torch.tensor([(float(row[0]) - 1) / 4 for row in found]),
        torch.tensor([_RELATIONS.index(row[1]) for row in found]),
    )


class _Siamese(nn.Module):
    """The same embeddings for both sentences, then what they have in common and what not."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.EmbeddingBag(2500, 64, padding_idx=PAD)
        self.mlp = mlp(3 * 64, 64, 4)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = self.word(first), self.word(second)
        out: Tensor = self.mlp(torch.cat([a * b, (a - b).abs(), a + b], 1))
        return out


def _two_losses(model: nn.Module, batch: Batch) -> Tensor:
    first, second, related, relation = batch
    out = model(first, second)
    return F.mse_loss(out[:, 0].sigmoid(), related) + 0.3 * F.cross_entropy(out[:, 1:], relation)


def _translations() -> Parts:
    found = {part: lines(f"translate_en_fr_{part}.tsv.gz") for part in ("train", "val", "test")}

    def words(row: list[str], language: int) -> list[str]:
        return row[language].lower().replace(".", "").replace(",", "").split()

    known = [vocabulary((words(row, side) for row in found["train"]), most=3998) for side in (0, 1)]

    def part(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
        english, french = (coded([words(row, side) for row in rows], known[side], 24) for side in (0, 1))
        return english, french

    train = part(found["train"])
    return three_parts(
        [side[:12_000] for side in train],
        [side[-2048:] for side in train],
        part(found["val"] + found["test"]),
    )


class _TwoBags(nn.Module):
    """A point on the sphere for each sentence, by its language's own words, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = nn.ModuleList(Words(4000, 64, 64) for _ in range(2))
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, english: Tensor, french: Tensor) -> Tensor:
        a, b = (F.normalize(side(one)) for side, one in zip(self.sides, (english, french), strict=True))
        return self.log_scale.clamp_max(4.6).exp() * a @ b.T


def _contrastive(model: nn.Module, batch: Batch) -> Tensor:
    """Which of the batch's French sentences, and which of the English."""
    scores = model(*batch)
    wanted = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.T, wanted)) / 2


# ---------------------------------------------------------------------- a label for every word


def _entities() -> Parts:
    def sentences(part: str) -> list[list[list[str]]]:
        rows = (line.split("\t") for line in text(f"tag_conll2002_es_{part}.tsv.gz").split("\n"))
        return [list(group) for filled, group in groupby(rows, lambda row: len(row) == 3) if filled]

    found = {part: sentences(part) for part in ("train", "valid", "test")}
    words = vocabulary(([row[0] for row in one] for one in found["train"]), least=2)
    tags = sorted({row[2] for one in found["train"] for row in one})

    def part(name: str) -> tuple[Tensor, Tensor]:
        x = coded(([row[0] for row in one] for one in found[name]), words, 40)
        y = [[tags.index(row[2]) for row in one[:40]] + [_IGNORED] * (40 - len(one)) for one in found[name]]
        return x, torch.tensor(y)

    return three_parts(part("train"), part("valid"), part("test"))


# ---------------------------------------------------------------------- sequences from sequences


def _spellings() -> Parts:
    """Letters, phonemes before, phonemes after."""
    found = [(row[0], row[1].split()) for row in lines("seq2seq_cmudict.tsv.gz")]
    letters, sounds = vocabulary(word for word, _ in found), vocabulary(sound for _, sound in found)
    begin = end = len(sounds) + 2
    spoken = coded((sound for _, sound in found), sounds, 17)
    before = torch.cat([torch.full_like(spoken[:, :1], begin), spoken[:, :-1]], 1)
    lengths = (spoken != PAD).sum(1, keepdim=True)
    places = torch.arange(17)
    after = torch.where(places == lengths, end, torch.where(places < lengths, spoken, _IGNORED))
    return split(coded((word for word, _ in found), letters, 16), before, after)


class _Spelling(nn.Module):
    """A GRU that reads letters, and one that goes on from its state and speaks."""

    def __init__(self, letters: int, sounds: int, width: int) -> None:
        super().__init__()
        self.letter, self.sound = nn.Embedding(letters, width), nn.Embedding(sounds, width)
        self.reader, self.speaker = (nn.GRU(width, width, batch_first=True) for _ in range(2))
        self.head = nn.Linear(2 * width, sounds)

    def forward(self, word: Tensor, before: Tensor) -> Tensor:
        read, state = self.reader(self.letter(word))
        spoken, _ = self.speaker(self.sound(before), state)
        heard = F.scaled_dot_product_attention(spoken, read, read)
        out: Tensor = self.head(torch.cat([spoken, heard], 2))
        return out


_COMMAND, _ACTIONS = 9, 31


def _commands() -> Parts:
    """The command and its actions in one row; only actions are predicted. Long ones are left out."""
    found = {part: lines(f"seq2seq_scan_{part}.tsv.gz") for part in ("train", "test")}
    words = vocabulary(one.split() for row in found["train"] for one in row)

    def part(rows: list[list[str]]) -> tuple[Tensor, Tensor]:
        short = [row for row in rows if len(row[1].split()) < _ACTIONS]
        command = coded((row[0].split() for row in short), words, _COMMAND)
        actions = coded((row[1].split() for row in short), words, _ACTIONS)
        whole = torch.cat([command, actions], 1)
        wanted = whole[:, 1:].clone()
        wanted[:, : _COMMAND - 1] = _IGNORED
        wanted[:, _COMMAND:][actions[:, 1:] == PAD] = _IGNORED
        return whole[:, :-1].contiguous(), wanted

    train = part(found["train"])
    return three_parts([one[:-1000] for one in train], [one[-1000:] for one in train], part(found["test"]))


# ---------------------------------------------------------------------- the next character


def characters(file: str, length: int, most: int | None = None) -> Parts:
    """Windows of a text in three stretches, and what follows each character; ``most`` windows to train on."""
    raw = text(file)
    kinds = {one: code for code, one in enumerate(sorted(set(raw)))}
    codes = torch.tensor([kinds[one] for one in raw])
    windows = codes[: len(codes) // (length + 1) * (length + 1)].view(-1, length + 1)
    parts = split(windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), probe=0.1, test=0.1)

    def drawn(part: Batch, rows: int | None) -> Batch:
        order = torch.randperm(len(part[0]), generator=generator(0, "zoo characters"))[:rows]
        return tuple(one[order] for one in part)

    return Parts(drawn(parts.train, most), drawn(parts.probe, 512), drawn(parts.test, 1024))


TASKS: tuple[Task, ...] = (
    task(
        "messages-spam",
        "text-messages",
        800,
        data=_messages,
        model=lambda: Words(4000, 32, 32, 1),
        loss=yes_or_no,
        batch=32,
    ),
    task(
        "pairs-two-losses",
        "sentence-pairs",
        1000,
        data=_pairs,
        model=_Siamese,
        loss=_two_losses,
        batch=64,
    ),
    task(
        "attachment-large-vocabulary",
        "attachments",
        1200,
        data=_attachments,
        model=lambda: nn.Sequential(nn.Embedding(8000, 32), nn.Flatten(), mlp(128, 64, 1)),
        loss=yes_or_no,
        batch=64,
        also=("lion",),
    ),
    task(
        "entities-both-ways",
        "spanish-entities",
        600,
        data=_entities,
        model=lambda: Recurrent(64, 64, 9, tokens=12_500, every=True, both_ways=True),
        loss=cross_entropy,
        batch=32,
    ),
    task(
        "stories-attention",
        "stories",
        800,
        data=_stories,
        model=lambda: Encoder(64, 6, 66, tokens=40),
        loss=cross_entropy,
        batch=64,
        also=("muon",),
        floor=0.05,
    ),
    task(
        "pronunciation-recurrent",
        "pronunciations",
        800,
        data=_spellings,
        model=lambda: _Spelling(30, 80, 96),
        loss=cross_entropy,
        batch=64,
    ),
    task(
        "commands-transformer",
        "robot-commands",
        800,
        data=_commands,
        model=lambda: GPT(30, 2, 64, 4, _COMMAND + _ACTIONS),
        loss=cross_entropy,
        batch=64,
        also=("muon",),
        floor=0.02,
    ),
    task(
        "translations-contrastive",
        "translations",
        500,
        data=_translations,
        model=_TwoBags,
        loss=_contrastive,
        batch=256,
        rows=256,
    ),
    task(
        "surnames-recurrent",
        "surnames",
        1000,
        data=_names,
        model=lambda: Recurrent(32, 64, 18, tokens=100),
        loss=cross_entropy,
        batch=64,
        also=("lion",),
    ),
    task(
        "quijote-transformer",
        "prose",
        1000,
        data=partial(characters, "lm_quijote_es.txt.gz", 64),
        model=lambda: GPT(90, 2, 96, 4, 64),
        loss=cross_entropy,
        batch=32,
        also=("lion", "muon"),
    ),
    task(
        "quijote-few-pages-long",
        "prose",
        5000,
        data=partial(characters, "lm_quijote_es.txt.gz", 32, 1500),
        model=lambda: Recurrent(32, 96, 90, tokens=90, every=True),
        loss=cross_entropy,
        batch=16,
    ),
    task(
        "chess-moves-recurrent",
        "notation",
        800,
        data=partial(characters, "lm_chess_pgn.txt.gz", 64),
        model=lambda: Recurrent(32, 128, 40, tokens=40, every=True),
        loss=cross_entropy,
        batch=32,
    ),
    task(
        "tunes-transformer",
        "notation",
        800,
        data=partial(characters, "lm_nottingham_abc.txt.gz", 64),
        model=lambda: GPT(100, 2, 64, 4, 64, dropout=0.1),
        loss=cross_entropy,
        batch=64,
        also=("muon",),
    ),
)
