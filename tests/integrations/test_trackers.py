"""What real trackers have kept of a run, read back from where they keep it."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.history import SyncRecord
from hdet.integrations.trackers import Tracker

NAMES = {"hdet/lr/0", "hdet/lag/lr", "hdet/replica/0/loss", "hdet/sync_ms"}


def train(target: Any, path: Path) -> list[SyncRecord]:
    """A run of AutoLR; the records of its file."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    probe = hdet.Probe(loss_of, list(torch.randn(4, 8, 4)), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=80, history=[path, Tracker(target)])
    for x in torch.randn(80, 8, 4):
        loss = loss_of(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        auto.step(loss)
    return hdet.history.read_history(path)


def rates(records: list[SyncRecord]) -> list[tuple[int, float]]:
    return [(record.step, record.hyperparameters[0].base_after) for record in records]


#: A line that has words.
ODD = {**{"step": 90, "hyperparameters": [], "losses": [], "milliseconds": 1.0}, "events": ["something odd"]}


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "events"))
    records = train(writer, tmp_path / "history.jsonl")
    Tracker(writer)(ODD)
    writer.close()
    kept = EventAccumulator(str(tmp_path / "events")).Reload()
    assert set(kept.Tags()["scalars"]) == NAMES
    shown = [(event.step, event.value) for event in kept.Scalars("hdet/lr/0")]
    assert [step for step, _ in shown] == [step for step, _ in rates(records)]
    assert [value for _, value in shown] == pytest.approx([value for _, value in rates(records)])
    (text,) = kept.Tensors("hdet/event/text_summary")
    assert (text.step, text.tensor_proto.string_val[0]) == (90, b"something odd")


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="hdet")
    for _ in range(30):
        run.log({"theirs": 1.0})  # the run's own step is beyond that of the first syncs
    records = train(run, tmp_path / "history.jsonl")
    Tracker(run)(ODD)
    run.finish()
    wandb.teardown()  # finish() does not wait for the service to write the file, the end of the service does
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = list(lines_of_wandb(file))
    shown = [(row["hdet/step"], row["hdet/lr/0"]) for row in rows if "hdet/lr/0" in row]
    assert shown == rates(records)
    assert any(row.get("hdet/event") == "something odd" for row in rows)


def lines_of_wandb(file: Path) -> Iterator[dict[str, Any]]:
    """The rows of an offline run, for which the package has no reader: a log of LevelDB's kind, in blocks of
    32 KiB, of records that may be cut into pieces."""
    from wandb.proto import wandb_internal_pb2

    data, at, pieces = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record, pieces = wandb_internal_pb2.Record.FromString(pieces), b""
            if record.HasField("history"):
                items = record.history.item
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri() + "/mlruns")
    with mlflow.start_run() as run:
        records = train(mlflow, tmp_path / "history.jsonl")
        Tracker(mlflow)(ODD)
    client = mlflow.MlflowClient()
    shown = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "hdet/lr/0")]
    assert shown == rates(records)
    kept = client.get_run(run.info.run_id).data
    assert set(kept.metrics) == NAMES | {"hdet/event"}
    assert kept.tags["hdet/event/90"] == "something odd"


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio is not installed")
    run = trackio.init(project="hdet", embed=False, auto_log_cpu=False)
    records = train(run, tmp_path / "history.jsonl")
    Tracker(run)(ODD)
    trackio.finish()
    (file,) = tmp_path.glob("trackio/hdet*.db")
    with closing(sqlite3.connect(file)) as base:
        rows = [(step, json.loads(row)) for step, row in base.execute("SELECT step, metrics FROM metrics")]
    shown = [(step, row["hdet/lr/0"]) for step, row in sorted(rows, key=lambda row: row[0]) if step < 90]
    assert shown == rates(records)
    assert dict(rows)[90]["hdet/event"] == "something odd"
