"""Copies that training returns to: afterwards all that training changes is what it was, bit for bit."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils._pytree import tree_leaves

import hdet
from hdet.autolr import snapshot as snapshot_module
from hdet.autolr.rule import HorizonController
from hdet.autolr.snapshot import (
    Copies,
    Snapshot,
    copy_into,
    copy_of,
    empty_copy,
    fits,
    has_room,
    wait_for_copies,
)
from hdet.history import SyncRecord
from tests.fakes import Alike
from tests.states import there_and_back
from tests.unit.training import Training, X, fixed_windows, probe_of, squared

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),  # has its state from the beginning
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.01),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),  # keeps lists, and writes into them
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def batch(step: int) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, batch(step))
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


def build(kind: str) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Net()
    return model, OPTIMIZERS[kind](model.parameters())


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights, buffers, and all that the optimizer remembers; a group's lr is the schedule's."""
    state = optimizer.state_dict()["state"]
    return deepcopy(
        {
            "model": model.state_dict(),
            "state": {p: kept for p, kept in state.items() if kept},
            "groups": [
                {k: v for k, v in g.items() if k not in ("params", "lr")} for g in optimizer.param_groups
            ],
        }
    )


def assert_same(a: Any, b: Any, path: str = "") -> None:
    assert type(a) is type(b), path
    if isinstance(a, Tensor):
        assert torch.equal(a, b), path
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}/{i}")
    else:
        assert a == b, path


@pytest.mark.parametrize("before", [0, 4])
@pytest.mark.parametrize(
    ("kind", "offload"), [*((kind, False) for kind in OPTIMIZERS), ("adamw", True), ("momentum", True)]
)
def test_a_detour_leaves_nothing_behind(kind: str, before: int, offload: bool) -> None:
    """Also where the optimizer had no state yet; and it can be restored more than once."""
    model, optimizer = build(kind)
    for step in range(before):
        train_step(model, optimizer, step)
    snapshot = Snapshot(optimizer, model, offload=offload)
    snapshot.take()
    then = everything(model, optimizer)
    for detour in (100, 200):
        for step in range(3):
            train_step(model, optimizer, detour + step)
        assert not torch.equal(model.layers[0].weight, then["model"]["layers.0.weight"])
        snapshot.restore()
        assert_same(everything(model, optimizer), then)
    straight, plain = build(kind)
    for step in range(before + 3):
        train_step(straight, plain, step)
    for step in range(before, before + 3):
        train_step(model, optimizer, step)
    assert_same(everything(model, optimizer), everything(straight, plain))


def test_it_is_restored_in_place_and_taken_without_new_memory() -> None:
    """Graphs, DDP's buckets and fused optimizers hold on to the tensors themselves."""
    model, optimizer = build("adamw")
    train_step(model, optimizer, 0)
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.take()
    kept = {key: tensor.data_ptr() for key, tensor in snapshot._copies.tensors.items()}
    live = [t.data_ptr() for state in optimizer.state.values() for t in state.values()]
    train_step(model, optimizer, 1)
    snapshot.restore()
    snapshot.take()
    assert live == [t.data_ptr() for state in optimizer.state.values() for t in state.values()]
    assert kept == {key: tensor.data_ptr() for key, tensor in snapshot._copies.tensors.items()}


def test_rows_return_to_their_own_statistics() -> None:
    """Those that the model itself holds are not the replicas'."""
    model, optimizer = build("adamw")
    replicas = hdet.StackedReplicas(model, optimizer, 2, gradients="none")
    snapshot = Snapshot(replicas.optimizer, model, offload=False, replicas=replicas)
    snapshot.take()
    then = replicas.state_dict()
    for step in range(3):
        replicas.backward(replicas.losses(loss_of, batch(step)))
        replicas.optimizer.step()
    now = replicas.state_dict()["layers.1.running_mean"]
    assert not torch.allclose(now[0], now[1])
    snapshot.restore()
    assert_same(replicas.state_dict(), then)


def test_memory_is_one_copy_of_each() -> None:
    model, optimizer = build("adamw")
    train_step(model, optimizer, 0)
    snapshot = Snapshot(optimizer, model, offload=False)
    assert snapshot.bytes() == 0
    snapshot.take()
    weights = sum(p.numel() * 4 for p in model.parameters())
    counters = 4 * len(list(model.parameters()))
    buffers = sum(b.numel() * b.element_size() for b in model.buffers())
    assert snapshot.bytes() == 3 * weights + counters + buffers


def test_the_learning_rate_is_not_its_business() -> None:
    model, optimizer = build("momentum")
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.take()
    optimizer.param_groups[0].update(lr=0.5, momentum=0.1)
    snapshot.restore()
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.9)


def test_buffers_made_or_grown_since_then_are_left_alone() -> None:
    """A cache of angles or masks that a forward registers; statistics keep their shape."""
    model, optimizer = build("sgd")
    model.register_buffer("cache", torch.zeros(2))
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.take()
    model.register_buffer("cache", torch.ones(5))
    model.register_buffer("another", torch.ones(1))
    snapshot.restore()
    assert torch.equal(model.cache, torch.ones(5))
    assert torch.equal(model.another, torch.ones(1))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resumed_run_can_go_back_to_where_the_unbroken_one_could(kind: str) -> None:
    model, optimizer = build(kind)
    for step in range(3):
        train_step(model, optimizer, step)
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.take()
    then = everything(model, optimizer)
    train_step(model, optimizer, 3)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), there_and_back(snapshot.state_dict())], file)
    file.seek(0)
    weights, state, kept = torch.load(file, weights_only=True)
    model, optimizer = build(kind)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.load_state_dict(kept)
    snapshot.restore()
    assert_same(everything(model, optimizer), then)


def test_a_model_of_one_weight_goes_back_after_it_was_resumed() -> None:
    model = nn.Linear(4, 1, bias=False)
    optimizer = SGD(model.parameters(), lr=0.1)
    snapshot = Snapshot(optimizer, model, offload=False)
    snapshot.take()
    then = everything(model, optimizer)
    again = Snapshot(optimizer, model, offload=False)
    again.load_state_dict(there_and_back(snapshot.state_dict()))
    train_step(model, optimizer, 0)
    again.restore()
    assert_same(everything(model, optimizer), then)


def test_a_snapshot_follows_state_that_goes_and_changes_shape() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], 0.1)
    snapshot = Snapshot(optimizer, nn.Module(), offload=False)
    optimizer.state[weight] = {"gone": torch.ones(2), "grown": torch.ones(2)}
    snapshot.take()
    optimizer.state[weight] = {"grown": torch.full((3,), 2.0)}
    snapshot.take()
    optimizer.state[weight]["grown"].fill_(7)
    snapshot.restore()
    assert optimizer.state[weight].keys() == {"grown"}
    assert optimizer.state[weight]["grown"].tolist() == [2, 2, 2]


# ---------------------------------------------------------------------- in a run


EVERY = 6


class Run:
    """AutoLR on the small net; ``poison(step)`` says by what the weights are multiplied after a step."""

    def __init__(self, kind: str, poison: Callable[[int], float | None], **options: Any) -> None:
        self.model, self.optimizer = build(kind)
        self.poison = poison
        settings: dict[str, Any] = {"total_steps": 400, **options}
        probe = hdet.Probe(lambda x: loss_of(self.model, x), lambda k: batch(10_000 + k), model=self.model)
        self.auto = fixed_windows(EVERY, self.optimizer, probe=probe, **settings)
        self.step = 0

    def __call__(self) -> SyncRecord | None:
        train_step(self.model, self.optimizer, self.step)
        by = self.poison(self.step)
        if by is not None:
            with torch.no_grad():
                self.model.layers[-1].weight.mul_(by)
        self.step += 1
        return self.auto.step()

    def until_a_record(self, at_most: int) -> SyncRecord:
        for _ in range(at_most):
            if (record := self()) is not None:
                return record
        raise AssertionError("no window has ended")


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("by", [1e6, math.nan, math.inf])
@pytest.mark.parametrize("kind", ["adamw", "momentum"])
@pytest.mark.parametrize("window", [0, 1, 2, 7])
def test_an_explosion_is_undone(kind: str, by: float, offload: bool, window: int) -> None:
    """In the first window too, where nothing is measured yet but how far the weights went."""
    at = window * EVERY + 2
    run = Run(kind, lambda step: by if step == at else None, offload=offload)
    for _ in range(window * EVERY):
        run()
    start, lr = everything(run.model, run.optimizer), run.auto.get_last_lr()[0]
    record = run.until_a_record(EVERY)
    assert record.step < (window + 1) * EVERY, "nobody waits for the window's end"
    assert record.horizon[0].action == "back"
    assert_same(everything(run.model, run.optimizer), start)
    assert run.auto.get_last_lr()[0] == pytest.approx(lr / (3 if window else 100))
    assert len(record.events) == 1
    assert f"back to the weights of step {window * EVERY}" in record.events[0]
    assert run.until_a_record(EVERY).horizon[0].action != "back", "and training goes on from there"


def test_steps_that_were_undone_are_not_travelled() -> None:
    """v counts steps that led somewhere: 4.5 of the window before and 5.5 of the one after, not ten more."""
    weight = nn.Parameter(torch.ones(50))
    model = nn.Module()
    model.weight = weight
    optimizer = torch.optim.SGD([weight], lr=1.0)
    probe = hdet.Probe(lambda k: weight.sum(), lambda k: k, model=model)  # a plane: every gradient is 1
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=100_000)
    seen = []
    for step in range(60):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        if step == 45:
            with torch.no_grad():
                weight.add_(1e6)
        record = auto.step()
        seen += [record] if record is not None else []
    assert [record.horizon[0].action for record in seen][4:] == ["back", "up"]
    lrs = [record.hyperparameters[0].base_before for record in seen]
    for previous, now in ((2, 3), (3, 5)):
        travelled = (4.5 * lrs[previous] + 5.5 * lrs[now]) / 10 * 100_000
        assert seen[now].horizon[0].speed == pytest.approx(travelled, rel=1e-2)


def test_moments_that_are_lost_are_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    """The weights are sound, and Adam would move them no more."""
    run = Training().run(100)
    for kept in run.optimizer.state.values():
        kept["exp_avg_sq"].fill_(math.inf)
    run.run(200)
    assert [record.step for record in run.records if record.horizon[0].action == "back"] == [103]
    assert "the optimizer's state became infinite or NaN" in caplog.text
    assert run.records[-1].horizon[0].loss_end < 0.8 * run.records[7].horizon[0].loss_end
    assert all(kept["exp_avg_sq"].isfinite().all() for kept in run.optimizer.state.values())


def test_there_are_five_rollbacks_in_a_row_at_most() -> None:
    run = Run("adamw", lambda step: math.nan if step >= 5 * EVERY else None)
    for _ in range(5 * EVERY):
        run()
    good = run.model.layers[0].weight.detach().clone()
    (state,) = run.auto._horizon._states
    assert state.worked > state.value / 3
    for count in range(1, 6):
        run.until_a_record(EVERY)
        lowest = state.worked / HorizonController().least
        assert run.auto._horizon._states[0].value == pytest.approx(max(state.value / 3**count, lowest))
        assert torch.equal(run.model.layers[0].weight, good)
    with pytest.raises(
        RuntimeError, match=r"AutoLR.step: step \d+: the probe's loss rose from \S+ to nan"
    ) as error:
        run.until_a_record(EVERY)
    assert "5 retries, 5 in all" in str(error.value)
    assert "Check the loss for NaN" in str(error.value)


def test_there_are_twenty_rollbacks_at_most() -> None:
    """Although windows in between go well."""

    def poison(step: int) -> float | None:
        return math.nan if step > 30 and step % (3 * EVERY) == 0 else None

    run = Run("adamw", poison, total_steps=1000, patience=None)
    actions: list[str] = []

    def train() -> None:
        for _ in range(700):
            record = run()
            actions.append(record.horizon[0].action if record is not None else "")

    with pytest.raises(RuntimeError, match=r"0 retries, 20 in all"):
        train()
    assert actions.count("back") == 20


def test_a_weight_that_the_probe_does_not_use_counts_too() -> None:
    """An embedding's rows: not finite, and no probe batch looks them up. The learning rate stays a number."""
    table = nn.Embedding(20, 4)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    probe = hdet.Probe(lambda k: table(torch.tensor([0, 1])).square().sum(), lambda k: k, model=table)
    auto = fixed_windows(5, optimizer, probe=probe, total_steps=100)
    actions = []
    for step in range(30):
        optimizer.zero_grad()
        table(torch.tensor([0, 1])).square().sum().backward()
        optimizer.step()
        if step == 17:
            with torch.no_grad():
                table.weight[19].fill_(math.nan)
        record = auto.step()
        actions += [record.horizon[0].action] if record else []
        assert math.isfinite(auto.get_last_lr()[0])
    assert actions[3] == "back"
    assert table.weight.isfinite().all()


@pytest.mark.parametrize("steepness", [3e5, 1e6, 1e9])
def test_a_loss_so_steep_that_even_the_first_learning_rate_is_too_high(steepness: float) -> None:
    """At 1e-5 plain gradient descent diverges on these from the first step on."""
    weight = nn.Parameter(torch.ones(4))
    model = nn.Module()
    model.weight = weight

    def loss(_: object = None) -> Tensor:
        return 0.5 * steepness * weight.square().sum()

    optimizer = torch.optim.SGD([weight], lr=1.0)
    auto = hdet.AutoLR(optimizer, probe=hdet.Probe(loss, lambda k: k, model=model), total_steps=400)
    for _ in range(400):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        auto.step()
    assert weight.abs().max() < 1e-3


# ---------------------------------------------------------------------- room


BLOCK = 64


class Codes(Tensor):
    """Eight-bit codes with a scale for each block, that pass for float32."""

    codes: Tensor
    scale: Tensor
    qmap: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, qmap: Tensor) -> Codes:
        made = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)
        made.codes, made.scale, made.qmap = codes, scale, qmap
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale", "qmap"], None

    @classmethod
    def __tensor_unflatten__(cls, parts: dict[str, Tensor], *_: Any) -> Codes:
        return cls(**parts)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Codes{tuple(self.shape)}"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:  # the same memory again
            return cls(args[0].codes, args[0].scale, args[0].qmap)
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes.detach(), args[0].scale.detach(), args[0].qmap)
        if func is torch.ops.aten.copy_.default and isinstance(args[0], cls):
            source = args[1]
            if isinstance(source, cls):
                args[0].codes.copy_(source.codes)
                args[0].scale.copy_(source.scale)  # the map is the same for all
            else:
                blocks = source.reshape(-1, BLOCK)
                args[0].scale.copy_(blocks.abs().amax(1).clamp(min=1e-12))
                args[0].codes.copy_(
                    (blocks / args[0].scale[:, None] * 127 + 128).round().to(torch.uint8).view_as(source)
                )
            return args[0]
        raise NotImplementedError(f"{cls.__name__} does not implement {func}")

    def dequantised(self) -> Tensor:
        values = self.qmap[self.codes.long()].reshape(-1, BLOCK) * self.scale[:, None]
        return values.view(self.shape)

    @classmethod
    def zeros(cls, shape: torch.Size) -> Codes:
        qmap = (torch.arange(256) - 128) / 127
        return cls(
            torch.full(shape, 128, dtype=torch.uint8), torch.zeros(shape.numel() // BLOCK), qmap.float()
        )


class Momentum8bit(torch.optim.Optimizer):
    """SGD whose momentum lies in codes; ``loose``: in tensors of their own, as bitsandbytes has it."""

    def __init__(self, params: Any, lr: float = 0.1, *, loose: bool = False) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9})
        self.loose = loose

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if not self.state[p]:
                    kept = Codes.zeros(p.shape)
                    self.state[p] = (
                        {"state1": kept.codes, "absmax1": kept.scale, "qmap1": kept.qmap}
                        if self.loose
                        else {"momentum_buffer": kept}
                    )
                state = self.state[p]
                kept = (
                    Codes(state["state1"], state["absmax1"], state["qmap1"])
                    if self.loose
                    else state["momentum_buffer"]
                )
                moved = group["momentum"] * kept.dequantised() + p.grad
                kept.copy_(moved)
                p.sub_(group["lr"] * moved)


def model_of() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1, bias=False))


def bits(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything that it keeps, part by part."""
    found: list[Tensor] = []
    for state in optimizer.state.values():
        for value in state.values():
            if hasattr(value, "__tensor_flatten__"):
                found += [getattr(value, name) for name in value.__tensor_flatten__()[0]]
            elif isinstance(value, Tensor):
                found.append(value)
    return found


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, start: int, steps: int, auto: Any = None
) -> None:
    for i in range(start, start + steps):
        optimizer.zero_grad()
        squared(model, X[i]).backward()
        optimizer.step()
        if auto is not None:
            auto.step()


def check_snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Back to the bit, in the same memory, twice; and through a file."""
    snapshot = Snapshot(optimizer, model, offload=True)
    train(model, optimizer, 0, 3)
    snapshot.take()
    then = [t.clone() for t in [*model.parameters(), *bits(optimizer)]]
    where = [t.data_ptr() for t in bits(optimizer)]
    for _ in range(2):
        train(model, optimizer, 10, 3)
        now = [*model.parameters(), *bits(optimizer)]
        assert not all(torch.equal(a, b) for a, b in zip(then, now, strict=True))
        snapshot.restore()
        assert all(
            torch.equal(a, b) for a, b in zip(then, [*model.parameters(), *bits(optimizer)], strict=True)
        )
        assert where == [t.data_ptr() for t in bits(optimizer)]
    file = io.BytesIO()
    torch.save(there_and_back(snapshot.state_dict()), file)
    file.seek(0)
    loaded = Snapshot(optimizer, model, offload=True)
    loaded.load_state_dict(torch.load(file, weights_only=False))
    train(model, optimizer, 20, 2)
    optimizer.state.clear()  # what is not there any more is made again
    train(model, optimizer, 20, 1)
    for parameter in model.parameters():
        optimizer.state[parameter].clear()
    loaded.restore()
    assert all(torch.equal(a, b) for a, b in zip(then, [*model.parameters(), *bits(optimizer)], strict=True))


@pytest.mark.parametrize("loose", [False, True])
def test_a_snapshot_keeps_codes_bit_for_bit(loose: bool) -> None:
    model = model_of()
    check_snapshot(model, Momentum8bit(model.parameters(), loose=loose))


def test_a_copy_has_memory_of_its_own() -> None:
    kept = Codes.zeros(torch.Size([4, 64]))
    kept.copy_(torch.randn(4, 64))
    other = copy_of(kept, torch.device("cpu"))
    assert isinstance(other, Codes)
    assert torch.equal(other.codes, kept.codes)
    assert not {t.data_ptr() for t in (other.codes, other.scale)} & {
        kept.codes.data_ptr(),
        kept.scale.data_ptr(),
    }
    assert fits(empty_copy(kept, offload=False), kept)
    assert not fits(torch.empty(4, 64), kept)
    copies = Copies(offload=False)
    copies.write({"codes": kept})
    assert copies.bytes() == 256 + 4 * 4 + 256 * 4, "and not those of float32"


def test_a_batch_of_all_kinds_is_copied_into_the_same_memory_again() -> None:
    codes = Codes.zeros(torch.Size([4, 64]))
    codes.copy_(torch.randn(4, 64))
    tensors: dict[str, torch.Tensor] = {
        "codes": codes,
        "weight": nn.Parameter(torch.randn(3, 5)),
        "turned": torch.randn(5, 3).t(),
        "narrow": torch.randn(7).bfloat16(),
        "step": torch.tensor(3.0),
        "none": torch.empty(0),
    }
    copies = Copies(offload=False)
    copies.write({})
    copies.write(tensors, tensors | {"narrow": torch.empty(7)})
    assert copies.tensors["narrow"].dtype == torch.float32, "the type of what it is like"
    before = dict(copies.tensors)
    with torch.no_grad():
        tensors["weight"].add_(1)
    copies.write(tensors, tensors | {"narrow": torch.empty(7)})
    for name, tensor in tensors.items():
        kept = copies.tensors[name]
        assert kept is before[name], "nothing is allocated"
        if name == "codes":
            assert isinstance(kept, Codes)
            assert torch.equal(kept.codes, codes.codes)
        else:
            assert torch.equal(kept, tensor.to(kept.dtype))
            assert not kept.requires_grad
    copies.write_all({"step": tensors["step"]})
    assert list(copies.tensors) == ["step"], "the others are forgotten"


def check_auto_lr(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    auto = hdet.AutoLR(optimizer, probe=probe_of(model), total_steps=120)
    start = float(squared(model, X[300]).detach())
    records = []
    for i in range(120):
        train(model, optimizer, i, 1)
        if i == 72:  # within a window
            with torch.no_grad():
                next(model.parameters()).mul_(1e5)
        records.append(auto.step())
    assert any(r.horizon[0].action == "back" for r in records if r), "it went back, state and all"
    assert float(squared(model, X[300]).detach()) < 0.5 * start


def test_auto_lr_trains_and_goes_back() -> None:
    model = model_of()
    check_auto_lr(model, Momentum8bit(model.parameters()))


@pytest.mark.parametrize("loose", [False, True])
def test_codes_are_not_averaged(loose: bool) -> None:
    """Found in the second step, when there is state, and not at the first sync."""
    model = model_of()
    optimizer = Momentum8bit(model.parameters(), loose=loose)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.LearningRate()], gradients="none", sync_every=50, process_group=Alike(), model=model
    )
    train(model, optimizer, 0, 1, ensemble)
    with pytest.raises(RuntimeError, match=r"plain floating tensors where it is averaged.*kept as"):
        train(model, optimizer, 1, 1, ensemble)


def test_on_a_shared_gradient_codes_are_left_alone() -> None:
    model = model_of()
    optimizer = Momentum8bit(model.parameters())
    options: Any = {"sync_every": 5, "process_group": Alike(), "controller": None, "model": model}
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.1)], **options)
    train(model, optimizer, 0, 10, ensemble)
    assert ensemble.steps == 10


# ---------------------------------------------------------------------- the libraries, if installed


def torchao_adamw(model: nn.Module) -> torch.optim.Optimizer:
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed")
    return optim.AdamW8bit(model.parameters(), lr=1e-2, block_size=BLOCK)  # type: ignore[no-any-return]


def bitsandbytes_adamw(model: nn.Module) -> torch.optim.Optimizer:
    optim = pytest.importorskip("bitsandbytes.optim", reason="bitsandbytes is not installed")
    return optim.AdamW8bit(model.parameters(), lr=1e-2, min_8bit_size=BLOCK)  # type: ignore[no-any-return]


LIBRARIES = {"torchao": torchao_adamw, "bitsandbytes": bitsandbytes_adamw}


def wide() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 512), nn.Tanh(), nn.Linear(512, 1))


@pytest.fixture
def uncompiled() -> Any:
    """torchao compiles its step, which takes a minute and a compiler."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("check", [check_snapshot, check_auto_lr])
def test_a_library_goes_back(library: str, check: Any) -> None:
    model = wide()
    optimizer = LIBRARIES[library](model)
    check(model, optimizer)
    few = [t for t in bits(optimizer) if t.dtype == torch.uint8]
    assert few, "it did keep codes"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_not_averaged(library: str) -> None:
    model = wide()
    optimizer = LIBRARIES[library](model)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.LearningRate()], gradients="none", sync_every=50, process_group=Alike(), model=model
    )
    train(model, optimizer, 0, 1, ensemble)
    with pytest.raises(RuntimeError, match="kept as"):
        train(model, optimizer, 1, 1, ensemble)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("size", [10, 1 << 18, 3_333_333])
def test_the_host_s_memory_is_reached_by_the_device_and_given_back(size: int) -> None:
    """Whichever way it was made; what takes its place in memory is no longer pinned."""
    source = torch.randn(size, device="cuda")
    room = empty_copy(source, offload=True)
    assert room.is_pinned()
    copy_into(room, source)
    wait_for_copies()
    assert torch.equal(room, source.cpu())
    del room
    again = [torch.empty(size) for _ in range(4)]
    assert size < 1 << 18 or not any(tensor.is_pinned() for tensor in again)


# ---------------------------------------------------------------------- where copies lie


class OnDevice:
    """As much of a GPU's tensor as is asked whether copies have room."""

    device = torch.device("cuda", 0)

    def __init__(self, size: int) -> None:
        self._size = size

    def numel(self) -> int:
        return self._size

    def element_size(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("sizes", "free", "expected"), [([25], 100, True), ([20, 6], 100, False), ([], 0, True)]
)
def test_copies_may_take_a_quarter_of_what_is_free(
    sizes: list[int], free: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1000))
    assert has_room([OnDevice(size) for size in sizes]) is expected  # type: ignore[misc]
    counter = torch.zeros(())
    assert has_room([*map(OnDevice, sizes), counter]) is expected  # type: ignore[list-item]
    assert not has_room([torch.empty(1, device="meta")]), "of other devices nothing is known"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each memory that is made is the host's."""
    found: list[bool] = []

    def record(tensor: Tensor, *, offload: bool) -> Tensor:
        found.append(offload)
        return torch.empty_like(tensor)

    monkeypatch.setattr(snapshot_module, "empty_copy", record)
    return found


@pytest.mark.parametrize("room", [False, True])
def test_by_default_copies_lie_where_there_is_room(
    room: bool, made: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(snapshot_module, "has_room", lambda some: bool(asked.append(len(list(some)))) or room)
    copies = Copies(offload=None)
    copies.write({"a": X[:2], "b": X[:3]})
    copies.write({"a": X[:2], "b": X[:3]})
    assert (made, asked) == ([not room, not room], [2]), "asked for all together, and once"
    copies.write({"a": X[:2], "c": X[:4]})
    assert (made[2:], asked) == ([not room], [2, 1])


@pytest.mark.parametrize("offload", [False, True])
def test_a_place_that_was_asked_for_is_taken(
    offload: bool, made: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "has_room", lambda _: pytest.fail("not to be asked"))
    copies = Copies(offload=offload)
    copies.write({"a": X[:2]})
    copies.load({"b": X[:3]})
    assert made == [offload, offload]


def test_what_is_loaded_lies_with_the_host_until_training_has_shown_its_room(made: list[bool]) -> None:
    Copies(offload=None).load({"a": X[:2]})
    assert made == [True]


def test_the_first_window_has_the_copy_of_the_beginning() -> None:
    """The same weights: one copy serves both, until the next window begins."""
    run = Run("adamw", lambda _: None, offload=True)
    run()
    once = run.auto.extra_bytes()
    run.until_a_record(EVERY)
    run()
    weights = sum(p.numel() * p.element_size() for p in run.model.parameters())
    assert run.auto.extra_bytes() >= once + 3 * weights, "weights and two moments of the window's beginning"


@pytest.mark.parametrize("steps", [0, 1, EVERY + 1])
def test_no_two_tensors_of_a_state_share_memory(steps: int) -> None:
    """A distributed checkpoint is loaded in place."""
    run = Run("adamw", lambda _: None, offload=True)
    for _ in range(steps):
        run()
    leaves = tree_leaves(run.auto.state_dict())
    places = [leaf.data_ptr() for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()]
    assert len(places) > 10
    assert len(set(places)) == len(places)
