"""Tables: rows of numbers and categories, with the losses that such rows are trained by."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.zoo.data import arrays, bits, cut, scaled, sklearn_set, split, tensor, three_parts
from benchmarks.zoo.models import (
    Columns,
    cross_entropy,
    gaussian,
    likelihood,
    mlp,
    predicted,
    squares,
    yes_or_no,
)
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS"]


def _numbers(file: str, **how: float) -> Parts:
    """Standardised columns ``X`` and the target."""
    found = arrays(file)
    return scaled(split(tensor(found["X"]).float(), tensor(found["y"]), **how), 0)  # type: ignore[arg-type]


def _mixed(file: str) -> Parts:
    """Standardised numbers, categories, target."""
    found = arrays(file)
    return scaled(split(tensor(found["num"]), tensor(found["cat"]), tensor(found["y"])), 0)


def _kinds(file: str) -> tuple[int, ...]:
    return tuple(int(size) for size in arrays(file)["cat_sizes"])


def _forest(train: int | None = None) -> Parts:
    found = arrays("tab_covertype.npz")
    numbers, binary = tensor(found["num"]).float(), tensor(found["binary"]).float()
    parts = scaled(split(numbers, binary, tensor(found["y"]), train=train), 0)
    return three_parts(
        *((torch.cat(part[:2], 1), part[2]) for part in (parts.train, parts.probe, parts.test))
    )


def _forest_balanced_probe() -> Parts:
    """The probe has as many rows of each class, as far as there are."""
    parts = _forest(train=1500)
    y = parts.probe[1]
    rows = torch.cat([torch.nonzero(y == kind).flatten()[:40] for kind in range(7)])
    rows = rows[torch.randperm(len(rows), generator=generator(0, "zoo forest"))]
    return Parts(parts.train, tuple(column[rows] for column in parts.probe), parts.test)


def _mushrooms() -> Parts:
    found = arrays("tab_mushroom.npz")
    kinds, y = tensor(found["cat"]), tensor(found["y"])
    return split(torch.zeros(len(y), 0), kinds, y)


def _mail() -> Parts:
    found = arrays("tab_spambase.npz")
    return split(tensor(found["X"]).log1p(), tensor(found["y"]))


def _squares_of_the_board(train: int | None = None, wrong: float = 0.0) -> Parts:
    """Six codes; of the labels trained on, a share of ``wrong`` is drawn at random."""
    found = arrays("tab_chess_endgame.npz")
    codes, y = tensor(found["X"]), tensor(found["y"])
    parts = split(torch.zeros(len(y), 0), codes, y, train=train)
    draw = generator(0, "zoo wrong labels")
    y = parts.train[2]
    random = torch.randint(18, y.shape, generator=draw)
    y = torch.where(torch.rand(y.shape, generator=draw) < wrong, random, y)
    return Parts((*parts.train[:2], y), parts.probe, parts.test)


def _poker() -> Parts:
    found = arrays("tab_poker_hand.npz")
    cards = tensor(found["X"])
    suits, ranks = F.one_hot(cards[:, ::2] - cards[:, ::2].min()), F.one_hot(cards[:, 1::2])
    return split(torch.cat([suits.flatten(1), ranks.flatten(1)], 1).float(), tensor(found["y"]))


def _intrusion() -> Parts:
    """Probe and test are of another time, with attacks that the training rows do not have."""
    found = arrays("tab_intrusion_nslkdd.npz")
    first = int(found["n_train"])
    numbers = tensor(found["num"]).clamp_min(0).log1p()
    columns = numbers, tensor(found["cat"]), tensor(found["y"])
    later = split(*(column[first:] for column in columns), probe=0.3, test=0.7)
    parts = scaled(three_parts([column[:first] for column in columns], later.probe, later.test), 0)
    return three_parts(
        *((part[0].clamp(-5, 5), *part[1:]) for part in (parts.train, parts.probe, parts.test))
    )


def _genes() -> Parts:
    found = arrays("wide_srbct_genes.npz")
    x, y = tensor(found["X_train"]), tensor(found["y_train"])
    order = torch.randperm(len(y), generator=generator(0, "zoo genes"))
    x, y = x[order], y[order]
    test = tensor(found["X_test"]), tensor(found["y_test"])
    return scaled(three_parts((x[:43], y[:43]), (x[43:], y[43:]), test), 0)


def _yeast() -> Parts:
    found = arrays("multilabel_yeast.npz")
    return scaled(split(tensor(found["X"]), tensor(found["Y"])), 0)


def _houses(standard: bool) -> Parts:
    parts = _mixed("reg_california_housing.npz")
    return scaled(parts, 2) if standard else parts


def _protein() -> Parts:
    return scaled(_numbers("reg_protein_casp.npz"), 1)


def _survival() -> Parts:
    found = arrays("surv_flchain.npz")
    columns = tensor(found["X"]), tensor(found["time"]), tensor(found["event"]).float()
    return scaled(split(*columns, probe=0.3), 0)


_LONGEST_LIST = 30


def _lists() -> Parts:
    """One row for each query: its documents, filled up, and their relevance, −1 where there is none."""
    found = arrays("rank_lambdarank.npz")

    def padded(part: str) -> tuple[Tensor, Tensor]:
        sizes = [int(size) for size in found[f"group_{part}"]]
        documents = cut(tensor(found[f"X_{part}"]), sizes)
        relevance = cut(tensor(found[f"y_{part}"]), sizes)
        x = torch.zeros(len(sizes), _LONGEST_LIST, documents[0].shape[1])
        y = torch.full((len(sizes), _LONGEST_LIST), -1)
        for row, (one, relevant) in enumerate(zip(documents, relevance, strict=True)):
            x[row, : len(one)], y[row, : len(one)] = one[:_LONGEST_LIST], relevant[:_LONGEST_LIST]
        return x, y

    x, y = padded("train")
    x_test, y_test = padded("test")
    spread = x.std((0, 1)) + 1e-3
    return three_parts((x[:153] / spread, y[:153]), (x[153:] / spread, y[153:]), (x_test / spread, y_test))


def _films() -> Parts:
    """A user, a film watched, and any other film."""
    found = arrays("rec_movielens100k.npz")
    user, film = tensor(found["user"]), tensor(found["item"])
    order = torch.randperm(len(user), generator=generator(0, "zoo films"))
    other = torch.randint(int(film.max()) + 1, film.shape, generator=generator(1, "zoo films"))
    return split(user[order], film[order], other, train=40_000)


def _facts(name: str) -> Parts:
    found = arrays(f"kg_{name}.npz")
    return three_parts(*([tensor(found[part])] for part in ("train", "valid", "test")))


def _message_words() -> Parts:
    return split(bits(arrays("bow_20news_w100.npz")["X"])[:, :100])


def _genres() -> Parts:
    """Raw columns. Neighbouring rows come from one song, so parts are made of blocks of fifty."""
    found = arrays("audio_gtzan_features.npz")
    blocks = torch.arange(4950).view(-1, 50)
    rows = blocks[torch.randperm(len(blocks), generator=generator(0, "zoo genres"))].flatten()
    return split(tensor(found["X"])[rows], tensor(found["y"])[rows], probe=0.15)


def _clinic(name: str) -> Parts:
    return scaled(split(*sklearn_set(name), probe=0.2), 0)


# ---------------------------------------------------------------------- models and losses of their own


class _Factors(nn.Module):
    """How well a user and a film go together."""

    def __init__(self, users: int, films: int, width: int) -> None:
        super().__init__()
        self.user, self.film = nn.Embedding(users, width), nn.Embedding(films, width)
        self.liked = nn.Embedding(films, 1)
        for table in (self.user, self.film, self.liked):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user: Tensor, film: Tensor) -> Tensor:
        out: Tensor = (self.user(user) * self.film(film)).sum(1) + self.liked(film)[:, 0]
        return out


class _Products(nn.Module):
    """Scores of every entity as the end of (begin, relation): a product of embeddings, complex ones."""

    def __init__(self, entities: int, relations: int, width: int) -> None:
        super().__init__()
        self.entity, self.relation = nn.Embedding(entities, 2 * width), nn.Embedding(relations, 2 * width)
        nn.init.normal_(self.entity.weight, std=0.1)
        nn.init.normal_(self.relation.weight, std=0.1)

    def forward(self, begin: Tensor, relation: Tensor) -> Tensor:
        (a, b), (c, d) = self.entity(begin).chunk(2, 1), self.relation(relation).chunk(2, 1)
        scores: Tensor = torch.cat([a * c - b * d, a * d + b * c], 1) @ self.entity.weight.T
        return scores


class _WordsVAE(nn.Module):
    """A few Gaussian numbers for a bag of words, drawn by the noise that the batch brings."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(100, 128, 32), mlp(16, 128, 100)

    def forward(self, words: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_deviation = self.encoder(words).chunk(2, 1)
        return self.decoder(mean + noise * log_deviation.exp()), mean, log_deviation


def _with_noise(batch: Batch, draw: torch.Generator) -> Batch:
    return batch[0], torch.randn(len(batch[0]), 16, generator=draw, device=batch[0].device)


def _evidence(model: nn.Module, batch: Batch) -> Tensor:
    logits, mean, log_deviation = model(*batch)
    words = F.binary_cross_entropy_with_logits(logits, batch[0], reduction="none").sum(1)
    divergence = 0.5 * (mean.square() + (2 * log_deviation).exp() - 1) - log_deviation
    loss: Tensor = (words + divergence.sum(1)).mean()
    return loss


def _mixture(model: nn.Module, batch: Batch) -> Tensor:
    weights, means, log_deviations = predicted(model, batch).chunk(3, 1)
    densities = likelihood(batch[-1][:, None], means, log_deviations)
    return (weights.log_softmax(1) + densities).logsumexp(1).mean().neg()


def _raw_absolute(model: nn.Module, batch: Batch) -> Tensor:
    """In dollars; the model's unit is a hundred thousand of them."""
    return F.l1_loss(1e5 * predicted(model, batch)[:, 0], batch[-1])


def _raw_squares(model: nn.Module, batch: Batch) -> Tensor:
    """In squared dollars; the model's unit is a thousand of them."""
    return F.mse_loss(1e3 * predicted(model, batch)[:, 0], batch[-1])


def _ordinal(model: nn.Module, batch: Batch) -> Tensor:
    """Whether the grade is above 3, 4, …, 8."""
    above = batch[-1][:, None] > torch.arange(3, 9, device=batch[-1].device)
    return F.binary_cross_entropy_with_logits(predicted(model, batch), above.float())


def _counts(model: nn.Module, batch: Batch) -> Tensor:
    """Poisson's, without the term that does not depend on the model: below zero where counts are high."""
    return F.poisson_nll_loss(predicted(model, batch)[:, 0], batch[-1].float())


def _cox(model: nn.Module, batch: Batch) -> Tensor:
    """Who of those still under observation has the event now, by the rows of this batch."""
    x, time, event = batch
    order = time.argsort(descending=True)
    risk, event = model(x)[:, 0][order], event[order]
    loss: Tensor = ((risk.logcumsumexp(0) - risk) * event).sum() / event.sum().clamp_min(1)
    return loss


def _listwise(model: nn.Module, batch: Batch) -> Tensor:
    x, relevance = batch
    here = relevance >= 0
    scores = model(x)[..., 0].masked_fill(~here, -1e4)
    wanted = (2.0 ** relevance.clamp_min(0) - 1) * here
    wanted = wanted / wanted.sum(1, keepdim=True).clamp_min(1e-6)
    loss: Tensor = -(wanted * scores.log_softmax(1)).sum(1).mean()
    return loss


def _pairwise(model: nn.Module, batch: Batch) -> Tensor:
    user, watched, other = batch
    return F.softplus(model(user, other) - model(user, watched)).mean()


def _ends(model: nn.Module, batch: Batch) -> Tensor:
    begin, relation, end = batch[0].unbind(1)
    return F.cross_entropy(model(begin, relation), end)


TASKS: tuple[Task, ...] = (
    task(
        "letter-mlp",
        "letter-shapes",
        1200,
        data=partial(_numbers, "tab_letter.npz"),
        model=lambda: mlp(16, 128, 128, 26),
        loss=cross_entropy,
        batch=128,
        also=("lion", "muon"),
    ),
    task(
        "letter-large-batches",
        "letter-shapes",
        200,
        data=partial(_numbers, "tab_letter.npz"),
        model=lambda: mlp(16, 256, 256, 26, norm=True),
        loss=cross_entropy,
        batch=4096,
    ),
    task(
        "forest-one-pass",
        "forest-cover",
        320,
        data=_forest,
        model=lambda: mlp(54, 64, 64, 7),
        loss=cross_entropy,
        batch=32,
    ),
    task(
        "forest-balanced-probe",
        "forest-cover",
        1000,
        data=_forest_balanced_probe,
        model=lambda: mlp(54, 128, 7),
        loss=cross_entropy,
        batch=64,
        also=("lion",),
    ),
    task(
        "bank-embeddings",
        "bank-calls",
        800,
        data=partial(_mixed, "tab_bank_marketing.npz"),
        model=lambda: Columns(7, _kinds("tab_bank_marketing.npz"), 64, 64, 1),
        loss=yes_or_no,
        batch=256,
        also=("lion",),
    ),
    task(
        "mushrooms-separable",
        "mushrooms",
        500,
        data=_mushrooms,
        model=lambda: Columns(0, _kinds("tab_mushroom.npz"), 32, 1),
        loss=yes_or_no,
        batch=64,
        floor=0.05,
    ),
    task(
        "mail-linear-full-batch",
        "mail-frequencies",
        300,
        data=_mail,
        model=lambda: nn.Linear(57, 1),
        loss=yes_or_no,
        batch=None,
    ),
    task(
        "endings-embeddings",
        "chess-endings",
        1500,
        data=_squares_of_the_board,
        model=lambda: Columns(0, (9,) * 6, 128, 128, 18, width=16),
        loss=cross_entropy,
        batch=256,
        also=("muon",),
    ),
    task(
        "endings-noise-labels",
        "chess-endings",
        1000,
        data=partial(_squares_of_the_board, train=4000, wrong=0.3),
        model=lambda: Columns(0, (9,) * 6, 128, 128, 18, width=16),
        loss=cross_entropy,
        batch=128,
    ),
    task(
        "poker-mlp",
        "poker-hands",
        2000,
        data=_poker,
        model=lambda: mlp(90, 128, 128, 10),
        loss=cross_entropy,
        batch=128,
    ),
    task(
        "intrusion-later-probe",
        "network-intrusion",
        800,
        data=_intrusion,
        model=lambda: Columns(38, _kinds("tab_intrusion_nslkdd.npz"), 64, 64, 5),
        loss=cross_entropy,
        batch=128,
    ),
    task(
        "mammography-rare",
        "mammograms",
        800,
        data=partial(_numbers, "tab_mammography_imbalanced.npz", probe=0.2),
        model=lambda: mlp(6, 32, 32, 1),
        loss=yes_or_no,
        batch=64,
    ),
    task(
        "genes-full-batch",
        "tumour-genes",
        150,
        data=_genes,
        model=lambda: mlp(2308, 32, 4),
        loss=cross_entropy,
        batch=None,
        floor=0.05,
    ),
    task(
        "yeast-multilabel",
        "yeast-functions",
        1000,
        data=_yeast,
        model=lambda: mlp(103, 64, 14),
        loss=yes_or_no,
        batch=32,
    ),
    task(
        "houses-raw-dollars",
        "house-prices",
        1000,
        data=partial(_houses, standard=False),
        model=lambda: Columns(8, _kinds("reg_california_housing.npz"), 64, 64, 1),
        loss=_raw_absolute,
        batch=128,
    ),
    task(
        "houses-likelihood",
        "house-prices",
        800,
        data=partial(_houses, standard=True),
        model=lambda: Columns(8, _kinds("reg_california_housing.npz"), 64, 64, 2),
        loss=gaussian,
        batch=256,
        floor=1.0,
    ),
    task(
        "airfoil-uncentred",
        "lab-measurements",
        1500,
        data=partial(_numbers, "reg_airfoil.npz"),
        model=lambda: mlp(5, 64, 64, 1),
        loss=squares,
        batch=16,
    ),
    task(
        "concrete-hundred-epochs",
        "lab-measurements",
        2200,
        data=partial(_numbers, "reg_concrete.npz"),
        model=lambda: mlp(8, 64, 64, 1, act=nn.Tanh),
        loss=squares,
        batch=32,
        also=("lion",),
    ),
    task(
        "diamonds-raw-dollars",
        "diamond-prices",
        800,
        data=partial(_mixed, "reg_diamonds.npz"),
        model=lambda: Columns(6, _kinds("reg_diamonds.npz"), 64, 64, 1),
        loss=_raw_squares,
        batch=256,
    ),
    task(
        "protein-mixture",
        "protein-structure",
        1000,
        data=_protein,
        model=lambda: mlp(9, 64, 64, 3 * 5),
        loss=_mixture,
        batch=256,
        floor=1.0,
    ),
    task(
        "robot-likelihood",
        "robot-arm",
        1000,
        data=partial(_numbers, "reg_kin40k_robot.npz"),
        model=lambda: mlp(8, 128, 128, 2, act=nn.Tanh),
        loss=gaussian,
        batch=1024,
        also=("muon",),
        floor=1.0,
    ),
    task(
        "wine-ordinal",
        "wine-grades",
        800,
        data=partial(_numbers, "ord_wine_quality.npz"),
        model=lambda: mlp(12, 64, 6),
        loss=_ordinal,
        batch=64,
    ),
    task(
        "visits-poisson",
        "doctor-visits",
        600,
        data=partial(_numbers, "count_doctor_visits.npz"),
        model=lambda: mlp(9, 64, 1),
        loss=_counts,
        batch=512,
        floor=1.0,
    ),
    task(
        "survival-cox",
        "survival-times",
        500,
        data=_survival,
        model=lambda: mlp(9, 32, 1),
        loss=_cox,
        batch=256,
        rows=256,
    ),
    task(
        "ranking-lists-of-four",
        "search-ranking",
        500,
        data=_lists,
        model=lambda: mlp(301, 64, 1),
        loss=_listwise,
        batch=4,
    ),
    task(
        "films-pairwise",
        "film-choices",
        800,
        data=_films,
        model=lambda: _Factors(944, 1683, 32),
        loss=_pairwise,
        batch=1024,
        also=("lion",),
    ),
    task(
        "kinship-products",
        "knowledge-graphs",
        800,
        data=partial(_facts, "kinship"),
        model=lambda: _Products(104, 25, 32),
        loss=_ends,
        batch=128,
    ),
    task(
        "medicine-products",
        "knowledge-graphs",
        800,
        data=partial(_facts, "umls"),
        model=lambda: _Products(135, 46, 64),
        loss=_ends,
        batch=32,
    ),
    task(
        "message-words-vae",
        "newsgroup-words",
        1000,
        data=_message_words,
        model=_WordsVAE,
        loss=_evidence,
        batch=128,
        augment=_with_noise,
    ),
    task(
        "genres-raw-columns",
        "music-genres",
        800,
        data=_genres,
        model=lambda: nn.Sequential(nn.BatchNorm1d(53), mlp(53, 128, 5, norm=True)),
        loss=cross_entropy,
        batch=64,
    ),
    task(
        "activities-dropout",
        "activities",
        1000,
        data=partial(_numbers, "har_wisdm_features.npz"),
        model=lambda: mlp(43, 128, 128, 6, dropout=0.3),
        loss=cross_entropy,
        batch=32,
    ),
    task(
        "tumours-linear-full-batch",
        "clinic",
        200,
        data=partial(_clinic, "load_breast_cancer"),
        model=lambda: nn.Linear(30, 1),
        loss=yes_or_no,
        batch=None,
        floor=0.05,
    ),
    task(
        "diabetes-raw-target",
        "clinic",
        600,
        data=partial(_clinic, "load_diabetes"),
        model=lambda: mlp(10, 32, 1),
        loss=squares,
        batch=16,
    ),
)
