"""Series, signals and sequences that are no text."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import generator
from benchmarks.zoo.data import arrays, cut, split, tensor, three_parts
from benchmarks.zoo.models import Encoder, Recurrent, cross_entropy, mlp, predicted, signals_net, squares
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS"]


def _windows(series: Tensor, past: int, ahead: int, every: int = 1) -> tuple[Tensor, Tensor]:
    """Stretches of (time, column), cut into what is seen and what follows."""
    pieces = series.unfold(0, past + ahead, every).transpose(1, 2)
    return pieces[:, :past].contiguous(), pieces[:, past:].contiguous()


def _in_time(series: Tensor, past: int, ahead: int, every: int = 1) -> Parts:
    """Windows of three stretches of time, in a random order within each."""
    ends = int(0.65 * len(series)), int(0.8 * len(series))
    parts = []
    for number, stretch in enumerate(series.tensor_split(ends)):
        seen, next_ = _windows(stretch, past, ahead, every)
        order = torch.randperm(len(seen), generator=generator(number, "zoo windows"))
        parts.append((seen[order], next_[order]))
    return three_parts(*parts)


def _standard(series: Tensor) -> Tensor:
    first = series[: int(0.65 * len(series))]
    return (series - first.mean(0)) / first.std(0)


def _load(past: int, ahead: int) -> Parts:
    return _in_time(_standard(tensor(arrays("ts_etth1.npz")["X"])), past, ahead, every=2)


def _air() -> Parts:
    """A day of weather (standardised) and dust (in hundreds of µg/m³), then the next hour's dust, raw."""
    found = arrays("ts_beijing_pm25.npz")
    dust = tensor(found["pm25"])[:, None]
    parts = _in_time(torch.cat([_standard(tensor(found["weather"])), dust / 100, dust], 1), 24, 1, every=3)

    def seen(batch: Batch) -> tuple[Tensor, Tensor]:
        return batch[0][..., :-1].contiguous(), batch[1][..., -1].contiguous()

    return three_parts(seen(parts.train), seen(parts.probe), seen(parts.test))


def _own_past(name: str, past: int, unit: float) -> Parts:
    """The past in ``unit``, and the next value raw."""
    series = tensor(arrays("ts_univariate.npz")[name])[:, None]
    parts = _in_time(series, past, 1)

    def seen(batch: Batch) -> tuple[Tensor, Tensor]:
        return batch[0][..., 0] / unit, batch[1][:, 0, 0]

    return three_parts(seen(parts.train), seen(parts.probe), seen(parts.test))


def _signals(file: str, probe: int) -> Parts:
    """One channel along a line, from a file with a test part or without."""
    found = arrays(file)
    if "X" in found:
        return split(tensor(found["X"])[:, None], tensor(found["y"]), probe=0.2, test=0.3)
    x, y = tensor(found["X_train"])[:, None], tensor(found["y_train"])
    test = tensor(found["X_test"])[:, None], tensor(found["y_test"])
    return three_parts((x[:-probe], y[:-probe]), (x[-probe:], y[-probe:]), test)


def _strokes() -> Parts:
    found = arrays("traj_pendigits.npz")
    return split(tensor(found["X"]).float() / 50 - 1, tensor(found["y"]))


def _utterances() -> Parts:
    """Frames filled up with zeros to 29."""
    found = arrays("audio_japanese_vowels.npz")

    def part(name: str) -> tuple[Tensor, Tensor]:
        frames = cut(tensor(found[f"X_{name}"]), found[f"len_{name}"].tolist())
        return nn.utils.rnn.pad_sequence(frames, batch_first=True), tensor(found[f"y_{name}"])

    x, y = part("train")
    x_test, y_test = part("test")
    order = torch.randperm(len(y), generator=generator(0, "zoo vowels"))
    x, y = F.pad(x[order], (0, 0, 0, 29 - x.shape[1])), y[order]
    x_test = F.pad(x_test, (0, 0, 0, 29 - x_test.shape[1]))
    return three_parts((x[:190], y[:190]), (x[190:], y[190:]), (x_test, y_test))


def _splice() -> Parts:
    found = arrays("seq_dna_splice.npz")
    return split(tensor(found["X"]) + 1, tensor(found["y"]))


_CHORD, _LOWEST = 32, 35


def _chorales() -> Parts:
    """Stretches of 33 sixteenths of four voices; pitches from 1, 0 is silence."""

    def part(name: str, first: int) -> tuple[Tensor]:
        pitches = (tensor(arrays("music_jsb_chorales.npz")[name]) - _LOWEST).clamp_min(0)
        pieces = pitches[: len(pitches) // (_CHORD + 1) * (_CHORD + 1)].view(-1, _CHORD + 1, 4)
        order = torch.randperm(len(pieces), generator=generator(0, "zoo chorales"))
        return (pieces[order][:first],)

    return three_parts(part("train", 2000), part("valid", 400), part("test", 600))


class _Voices(nn.Module):
    """The sum of four voices' embeddings, a GRU, and the next pitch of each voice."""

    def __init__(self, pitches: int, width: int) -> None:
        super().__init__()
        self.voices = nn.ModuleList(nn.Embedding(pitches, width) for _ in range(4))
        self.body = Recurrent(width, width, 4 * pitches, every=True)

    def forward(self, chords: Tensor) -> Tensor:
        heard = torch.stack([table(chords[..., i]) for i, table in enumerate(self.voices)]).sum(0)
        out: Tensor = self.body(heard)
        return out.view(*chords.shape, -1)


def _four_voices(model: nn.Module, batch: Batch) -> Tensor:
    """The sum of one loss for each voice."""
    (chords,) = batch
    logits = model(chords[:, :-1])
    return torch.stack(
        [F.cross_entropy(logits[:, :, i].flatten(0, 1), chords[:, 1:, i].flatten()) for i in range(4)]
    ).sum()


def _absolute(model: nn.Module, batch: Batch) -> Tensor:
    guess = predicted(model, batch)
    return F.l1_loss(guess, batch[-1].reshape(guess.shape))


TASKS: tuple[Task, ...] = (
    task(
        "load-recurrent",
        "transformer-load",
        600,
        data=partial(_load, 48, 1),
        model=lambda: Recurrent(7, 64, 7),
        loss=squares,
        batch=64,
    ),
    task(
        "load-linear-day-ahead",
        "transformer-load",
        300,
        data=partial(_load, 96, 24),
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(7 * 96, 7 * 24)),
        loss=_absolute,
        batch=2048,
    ),
    task(
        "air-raw",
        "city-air",
        800,
        data=_air,
        model=lambda: Recurrent(7, 64, 1),
        loss=squares,
        batch=128,
    ),
    task(
        "sunspots-raw",
        "single-series",
        1000,
        data=partial(_own_past, "sunspots_monthly", 48, 50.0),
        model=lambda: mlp(48, 64, 1),
        loss=squares,
        batch=16,
    ),
    task(
        "temperatures-full-batch",
        "single-series",
        400,
        data=partial(_own_past, "min_temperature_daily", 30, 10.0),
        model=lambda: mlp(30, 32, 1, act=nn.Tanh),
        loss=squares,
        batch=None,
    ),
    task(
        "heartbeats-batch-norm",
        "heartbeats",
        400,
        data=partial(_signals, "ts_ecg5000_train500.npz", 0),
        model=lambda: signals_net(1, 16, 32, 32, outputs=5),
        loss=cross_entropy,
        batch=16,
        floor=0.05,
    ),
    task(
        "signals-convolutions",
        "toy-signals",
        1000,
        data=partial(_signals, "ts_mnist1d.npz", 500),
        model=lambda: signals_net(1, 32, 64, 64, outputs=10, norm=False),
        loss=cross_entropy,
        batch=64,
        also=("lion",),
    ),
    task(
        "signals-mlp-overfits",
        "toy-signals",
        1000,
        data=partial(_signals, "ts_mnist1d.npz", 500),
        model=lambda: nn.Sequential(nn.Flatten(), mlp(40, 256, 256, 10)),
        loss=cross_entropy,
        batch=128,
        also=("muon",),
    ),
    task(
        "strokes-recurrent",
        "pen-strokes",
        800,
        data=_strokes,
        model=lambda: Recurrent(2, 64, 10),
        loss=cross_entropy,
        batch=64,
        floor=0.02,
    ),
    task(
        "speakers-recurrent",
        "speakers",
        400,
        data=_utterances,
        model=lambda: Recurrent(12, 32, 9),
        loss=cross_entropy,
        batch=8,
        floor=0.05,
    ),
    task(
        "splice-attention",
        "splice-sites",
        500,
        data=_splice,
        model=lambda: Encoder(64, 3, 60, tokens=9, dropout=0.1),
        loss=cross_entropy,
        batch=64,
        also=("muon",),
    ),
    task(
        "chorales-four-losses",
        "chorales",
        800,
        data=_chorales,
        model=lambda: _Voices(64, 64),
        loss=_four_voices,
        batch=32,
    ),
)
