"""A pass that is recorded once does what the pass itself does. What needs a GPU is skipped without one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.replicas.stacked import cuda_graph
from hdet.replicas.stacked.batches import flatten

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


class Model(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.dropout(torch.tanh(self.norm(self.first(x)))))
        return out


def loss_fn(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (model(batch["x"]) - batch["y"]).square().mean()


def replicas_on(device: str, dropout: float = 0.0, gradients: str = "all") -> hdet.StackedReplicas:
    torch.manual_seed(0)
    model = Model(dropout).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return hdet.StackedReplicas(model, optimizer, 4, gradients=gradients)  # type: ignore[arg-type]


def batches(device: str, count: int = 6, rows: int = 32) -> Iterator[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(rows, 6, generator=draw)
        yield {"x": x.to(device), "y": x.sum(1, keepdim=True).sin().to(device)}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("gradients", ["all", "none"])
def test_a_captured_pass_trains_as_losses_and_backward_do(device: str, gradients: str) -> None:
    plain, captured = (replicas_on(device, gradients=gradients) for _ in range(2))
    compute = captured.capture(loss_fn)
    for batch in batches(device):
        losses = plain.losses(loss_fn, batch)
        plain.backward(losses)
        torch.testing.assert_close(compute(batch), losses.detach())
        for replicas in (plain, captured):
            replicas.optimizer.step()
            replicas.optimizer.zero_grad()
    # Weights and running statistics: what warming up did to them was undone.
    for name, rows in plain.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], rows, msg=name)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_added_to_those_there(device: str) -> None:
    once, twice = replicas_on(device), replicas_on(device)
    one, other = batches(device, 2)
    compute = twice.capture(loss_fn)
    compute(one)
    compute(other)
    for batch in (one, other):
        once.backward(once.losses(loss_fn, batch))
    for a, b in zip(once.optimizer.matrices, twice.optimizer.matrices, strict=True):
        torch.testing.assert_close(b.grad, a.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_without_gradients_it_is_the_losses_and_gradients_there_stay(device: str) -> None:
    plain, captured = replicas_on(device), replicas_on(device)
    one, other = batches(device, 2)
    compute = captured.capture(loss_fn)
    compute(one)
    plain.backward(plain.losses(loss_fn, one))
    captured._model.norm.momentum = plain._model.norm.momentum = 0.5
    for _ in range(2):  # recorded, then replayed
        with torch.no_grad():
            torch.testing.assert_close(compute(other), plain.losses(loss_fn, other))
    for a, b in zip(plain.optimizer.matrices, captured.optimizer.matrices, strict=True):
        torch.testing.assert_close(b.grad, a.grad)
    for name, rows in plain.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], rows, msg=name)


@pytest.mark.parametrize("device", DEVICES)
def test_a_search_whose_probe_is_captured_is_the_same(device: str) -> None:
    """With batch norm: its statistics are recomputed by a momentum that the host writes."""
    found = []
    for is_captured in (False, True):
        replicas = replicas_on(device, gradients="none")
        compute = replicas.capture(loss_fn)
        held_out = list(batches(device, 8))
        loss_of = compute if is_captured else lambda batch, of=replicas: of.losses(loss_fn, batch)
        probe = hdet.Probe(loss_of, held_out, model=replicas._model)
        tune = hdet.AutoTune(replicas.optimizer, [hdet.WeightDecay()], probe=probe, total_steps=60)
        for batch in list(batches(device, 60)):
            replicas.backward(replicas.losses(loss_fn, batch))
            replicas.optimizer.step()
            replicas.optimizer.zero_grad()
            tune.step()
        best = tune.finish_()
        assert best is not None
        found.append(best)
    plain, captured = found
    assert (captured.step, captured.kind) == (plain.step, plain.kind)
    assert captured.estimate == pytest.approx(plain.estimate, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_every_replay_draws_other_masks_and_every_mode_and_shape_is_its_own(device: str) -> None:
    replicas = replicas_on(device, dropout=0.5)
    compute = replicas.capture(loss_fn)
    (batch,) = batches(device, 1)
    assert not torch.equal(compute(batch), compute(batch))
    replicas._model.eval()
    assert torch.equal(compute(batch), compute(batch))
    (short,) = batches(device, 1, rows=8)
    torch.testing.assert_close(compute(short), replicas.losses(loss_fn, short).detach())


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_reads_the_rates_that_were_written_since(device: str) -> None:
    replicas = replicas_on(device, dropout=0.5)
    compute = replicas.capture(loss_fn)
    (batch,) = batches(device, 1)
    compute(batch)  # recorded before anybody explores
    dropout = replicas._model.dropout
    values = replicas.values_of(dropout, "p")
    differing = []
    for rates in ([0.0, 0.5, 0.0, 0.5], [0.5, 0.0, 0.0, 0.0]):
        values.set_(torch.tensor(rates))
        differing.append((compute(batch) != compute(batch)).tolist())
    values.reset_()
    differing.append((compute(batch) != compute(batch)).tolist())
    dropout.p = 0.0
    differing.append((compute(batch) != compute(batch)).tolist())
    assert differing == [
        [False, True, False, True],
        [True, False, False, False],
        [True] * 4,
        [False] * 4,
    ]
    recorded = len(compute._recorded) if isinstance(compute, cuda_graph.CapturedPass) else 0
    assert recorded == (0 if device == "cpu" else 2), "one before there were rates, one since"


@NEEDS_GPU
def test_what_was_returned_is_not_written_over_and_a_batch_may_lie_on_the_host() -> None:
    replicas = replicas_on("cuda")
    compute = replicas.capture(loss_fn)
    first, second = batches("cpu", 2)
    losses = compute(first)
    kept = losses.clone()
    compute(second)
    assert torch.equal(losses, kept)


@pytest.mark.parametrize("device", DEVICES)
def test_a_group_that_the_loss_does_not_reach_stays(device: str) -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 1), "idle": nn.Linear(6, 1)}).to(device)
    groups = [{"params": list(part.parameters())} for part in model.values()]
    replicas = hdet.StackedReplicas(model, torch.optim.Adam(groups, lr=0.1), 2)
    compute = replicas.capture(lambda model, batch: model["used"](batch["x"]).square().mean())
    before = replicas.state_dict()
    for batch in batches(device, 2):
        compute(batch)
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
    for name, rows in replicas.state_dict().items():
        assert torch.equal(rows, before[name]) == name.startswith("idle"), name


# ---------------------------------------------------------------------- which passes are one recording


def test_what_the_host_decides_by_is_a_recording_of_its_own() -> None:
    def key(batch: Any, *modes: bool) -> Any:
        return cuda_graph._key(flatten(batch), modes)

    x = torch.zeros(8, 3)
    base = key({"x": x, "p": 0.5}, True)
    assert key({"x": x + 1, "p": 0.5}, True) == base
    others = [
        key({"x": x[:4], "p": 0.5}, True),
        key({"x": x.double(), "p": 0.5}, True),
        key({"x": x, "p": 0.25}, True),
        key([x, 0.5], True),
        key({"x": x, "p": 0.5}, False),
    ]
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        for dtype in (torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cuda", dtype)
            others.append(key({"x": x, "p": 0.5}, True))
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
    assert len({base, *others}) == 8


def test_the_oldest_recording_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    compute: Any = cuda_graph.CapturedPass(pytest.fail, pytest.fail, [], [])
    monkeypatch.setattr(compute, "_record", lambda flat: (made.append(len(flat.tensors[0])), flat)[1])
    for rows in (*range(4, 80, 4), 76, 4):
        compute._recording(flatten({"x": torch.zeros(rows, 6)}), ())
    assert made == [*range(4, 80, 4), 4], "the latest is at hand, the first is not"
    assert len(compute._recorded) == cuda_graph._KEPT


@NEEDS_GPU
def test_many_shapes_in_any_order_and_autocast() -> None:
    """Recordings lie in one pool of memory: whichever is replayed, none has the numbers of another."""
    plain, recorded = replicas_on("cuda", gradients="none"), replicas_on("cuda", gradients="none")
    compute: Any = recorded.capture(loss_fn)
    order = [*range(8, 160, 8), *range(152, 0, -8), *range(8, 160, 40)]
    for step, rows in enumerate(order):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=step % 3 == 0):
            for batch in batches("cuda", 2, rows=rows):  # the gradients of two add up
                losses = plain.losses(loss_fn, batch)
                plain.backward(losses)
                torch.testing.assert_close(compute(batch), losses.detach(), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(recorded.optimizer.matrices, plain.optimizer.matrices, strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        for replicas in (plain, recorded):
            replicas.optimizer.zero_grad()
    assert len(compute._recorded) == cuda_graph._KEPT
