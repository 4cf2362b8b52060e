"""Copies: of optimizer state in eight bits by its parts, bit for bit; and codes are never averaged.

A stand-in has the habits of torchao's (no ``empty_like``, no ``clone``, a ``.to(copy=True)`` that copies
nothing); the libraries themselves are tried where they are installed.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.autolr.room import bytes_of, copy_into, copy_of, fits, room_for, settled
from hdet.autolr.snapshot import Snapshot
from tests.fakes import Alike
from tests.states import there_and_back
from tests.unit.training import X, probe_of, squared

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


def check_way_back(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Back to the bit, in the same memory, twice; and through a file."""
    snapshot = Snapshot(list(model.parameters()), optimizer, model, offload=True)
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
    loaded = Snapshot(list(model.parameters()), optimizer, model, offload=True)
    loaded.load_state_dict(torch.load(file, weights_only=False))
    train(model, optimizer, 20, 2)
    optimizer.state.clear()  # what is not there any more is made again
    train(model, optimizer, 20, 1)
    for parameter in model.parameters():
        optimizer.state[parameter].clear()
    loaded.restore()
    assert all(torch.equal(a, b) for a, b in zip(then, [*model.parameters(), *bits(optimizer)], strict=True))


@pytest.mark.parametrize("loose", [False, True])
def test_the_way_back_keeps_codes_bit_for_bit(loose: bool) -> None:
    model = model_of()
    check_way_back(model, Momentum8bit(model.parameters(), loose=loose))


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
    assert fits(room_for(kept, offload=False), kept)
    assert not fits(torch.empty(4, 64), kept)
    assert bytes_of(kept) == 256 + 4 * 4 + 256 * 4, "and not those of float32"


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
        optimizer, [hdet.LearningRate()], gradients="none", sync_every=50, replicas=Alike(), model=model
    )
    train(model, optimizer, 0, 1, ensemble)
    with pytest.raises(RuntimeError, match=r"plain floating tensors where it is averaged.*kept as"):
        train(model, optimizer, 1, 1, ensemble)


def test_on_a_shared_gradient_codes_are_left_alone() -> None:
    model = model_of()
    optimizer = Momentum8bit(model.parameters())
    options: Any = {"sync_every": 5, "replicas": Alike(), "controller": None, "model": model}
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
@pytest.mark.parametrize("check", [check_way_back, check_auto_lr])
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
        optimizer, [hdet.LearningRate()], gradients="none", sync_every=50, replicas=Alike(), model=model
    )
    train(model, optimizer, 0, 1, ensemble)
    with pytest.raises(RuntimeError, match="kept as"):
        train(model, optimizer, 1, 1, ensemble)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("size", [10, 1 << 18, 3_333_333])
def test_the_host_s_memory_is_reached_by_the_device_and_given_back(size: int) -> None:
    """Whichever way it was made; what takes its place in memory is no longer pinned."""
    source = torch.randn(size, device="cuda")
    room = room_for(source, offload=True)
    assert room.is_pinned()
    copy_into(room, source)
    settled()
    assert torch.equal(room, source.cpu())
    del room
    again = [torch.empty(size) for _ in range(4)]
    assert size < 1 << 18 or not any(tensor.is_pinned() for tensor in again)
