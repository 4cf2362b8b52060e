"""The window in progress: its mean, how far it moved, and weights that diverge within it."""

from __future__ import annotations

import gc
import math
import signal
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from types import FrameType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hdet import AutoLR, Probe
from hdet.autolr import window
from hdet.autolr.clock import Clock
from hdet.autolr.window import Alarm, WeightPath, WindowLoop, WindowMean, _Bins, sketch, sketch_of_shards
from hdet.loop.policy import Context
from hdet.loop.windows import Windows
from hdet.replicas import SoloReplica
from tests.fakes import Thread, on_threads
from tests.states import there_and_back
from tests.unit.training import W, X, network, probe_of, squared, train


def walk(steps: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[list[Tensor]]:
    """The iterates of a window: two tensors, one of them a single number."""
    draw = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in ((3, 2), ())]
        for _ in range(steps)
    ]


def average(weights: list[Tensor], iterates: list[list[Tensor]], mean: WindowMean) -> list[Tensor]:
    mean.begin(len(iterates))
    for left, iterate in zip(reversed(range(len(iterates))), iterates, strict=True):
        for weight, value in zip(weights, iterate, strict=True):
            weight.copy_(value)
        mean.add(left)
    return [tensor.clone() for tensor in mean.tensors]


@pytest.mark.parametrize("steps", [1, 2, 8, 10, 15])
def test_a_window_mean_is_the_arithmetic_mean(steps: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(steps)
    found = average(weights, iterates, WindowMean(weights))
    for k, tensor in enumerate(found):
        torch.testing.assert_close(
            tensor, torch.stack([i[k] for i in iterates]).mean(0), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("steps", [16, 64, 100, 1001])
def test_of_a_long_window_every_kth_iterate_counts_and_the_last_one_always(steps: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(steps)
    mean = WindowMean(weights)
    found = average(weights, iterates, mean)
    stride = steps // 8
    chosen = iterates[::-1][::stride]
    assert mean.count == len(chosen)
    assert 8 <= mean.count < 16
    for k, tensor in enumerate(found):
        torch.testing.assert_close(
            tensor, torch.stack([i[k] for i in chosen]).mean(0), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("left", [math.nan, math.inf])
def test_a_window_owes_nothing_to_the_one_before(left: float) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    fresh = average(weights, walk(10), WindowMean(weights))
    mean = WindowMean(weights)
    average(weights, [[torch.full_like(w, left) for w in weights]] * 5, mean)
    assert not mean.tensors[0].isfinite().any()
    for a, b in zip(average(weights, walk(10), mean), fresh, strict=True):
        assert torch.equal(a, b)


def test_float16_weights_have_a_float32_mean() -> None:
    """In float16 a running mean of 15 iterates around 1 would hardly move."""
    weights = [torch.zeros(3, 2, dtype=torch.float16), torch.zeros((), dtype=torch.float16)]
    iterates = [[1 + t / 50 for t in step] for step in walk(15, torch.float16)]
    found = average(weights, iterates, WindowMean(weights))
    for k, tensor in enumerate(found):
        assert tensor.dtype == torch.float32
        exact = torch.stack([i[k].double() for i in iterates]).mean(0)
        torch.testing.assert_close(tensor.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("steps", [2, 8, 15])
@pytest.mark.parametrize("moves", [1e-3, 1e-2, 1e-1])
@pytest.mark.parametrize("size", [1e-2, 1.0, 500.0])
def test_a_float16_mean_of_bfloat16_weights_is_better_than_they_could_hold(
    steps: int, moves: float, size: float
) -> None:
    """The slow twin is the mean in float64; the error is less than what rounding to bfloat16 adds."""
    iterates = [(size * noise(20_000)).bfloat16()]
    for k in range(1, steps):
        iterates.append((iterates[-1].float() + moves * size * noise(20_000, seed=k)).bfloat16())
    weights = [iterates[0].clone()]
    (found,) = average(weights, [[iterate] for iterate in iterates], WindowMean(weights))
    exact, running = torch.stack([i.double() for i in iterates]).mean(0), iterates[0].clone()
    for k, iterate in enumerate(iterates[1:], start=2):
        running.lerp_(iterate, 1 / k)
    assert found.dtype == torch.float16
    error = (found.double() - exact).abs()
    reached = torch.stack([i.double().abs() for i in iterates]).amax(0)
    assert bool((error <= reached * 2**-8 + 2**-24).all()), "at most one rounding to bfloat16"
    error, rounding, of_running = (
        float((near.double() - exact).norm()) for near in (found, exact.bfloat16(), running)
    )
    assert error <= 0.5 * rounding
    assert error <= 0.35 * of_running or steps == 2


@pytest.mark.parametrize(
    ("largest", "kept_in"),
    [
        (0.0, torch.float16),
        (1e-6, torch.float32),
        (0.02, torch.float16),
        (4000.0, torch.float16),
        (5000.0, torch.float32),
        (math.nan, torch.float32),
    ],
)
def test_what_float16_cannot_hold_has_a_float32_mean(largest: float, kept_in: torch.dtype) -> None:
    weight = torch.zeros(5).bfloat16()
    weight[2] = -largest
    assert WindowMean([weight]).tensors[0].dtype == kept_in
    assert WindowMean([torch.zeros(0).bfloat16()]).tensors[0].dtype == torch.float16


def test_weights_that_become_large_have_a_float32_mean_from_then_on() -> None:
    weights = [torch.ones(4).bfloat16(), torch.ones(4).bfloat16()]
    loop = loop_of(weights, 4)
    assert [mean.dtype for mean in loop.mean.tensors] == [torch.float16, torch.float16]
    weights[1].data.fill_(1e38)
    loop.open()
    loop.mean.add(0)
    assert [mean.dtype for mean in loop.mean.tensors] == [torch.float16, torch.float32]
    large = weights[1].detach().clone()
    assert loop.at_mean(lambda: torch.equal(weights[1], large))
    assert torch.equal(weights[1], large)


def test_the_replicas_share_a_mean_that_was_made_anew() -> None:
    def act(rank: Thread) -> tuple[float, torch.dtype]:
        weight = nn.Parameter(torch.ones(3).bfloat16())
        context = Context("test", SGD([weight]), rank, None, True, tuple, nullcontext)
        path = WeightPath(context, (), Clock(Windows(first=1)))
        for size in (2.0, 2.0**16):
            weight.data.fill_(size)
            path.window.clock.begin(0)
            path.window.open()
            weight.data.fill_(size * (1 + rank.rank))
            path.window.mean.add(0)
            path.converge()
        return float(path.window.mean.tensors[0][0]), path.window.mean.tensors[0].dtype

    assert on_threads(2, act) == [(1.5 * 2**16, torch.float32)] * 2


@pytest.mark.parametrize("kept_in", [torch.float16, torch.float32])
@pytest.mark.parametrize("first", [1.0, 1e5])
def test_a_mean_is_loaded_in_the_type_that_it_was_saved_in(kept_in: torch.dtype, first: float) -> None:
    """Whatever the weights are by now, it goes on bit for bit. Earlier versions kept all in float32."""
    weights = [torch.full((4,), first).bfloat16()]
    loop = loop_of(weights, 4)
    saved = torch.tensor([1 + 2**-10, 1 + 2**-9, -0.3, 7e-4]).to(kept_in)
    loop.load_state_dict({**there_and_back(loop.state_dict(weights)), "mean": {0: saved}, "count": 3})
    assert loop.mean.tensors[0].dtype == kept_in
    assert torch.equal(loop.mean.tensors[0], saved)
    weights[0].data.fill_(2.0)
    loop.mean.add(0)
    assert torch.equal(loop.mean.tensors[0], saved.float().lerp_(torch.tensor(2.0), 1 / 4).to(kept_in))


@pytest.mark.parametrize("at", [0, 1, 37, 100])
def test_a_window_broken_off_goes_on(at: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(100)
    whole = average(weights, iterates, WindowMean(weights))
    first, second = loop_of(weights, 100), loop_of(weights, 100)
    over = False
    for k, iterate in enumerate(iterates):
        if k == at:
            second.load_state_dict(there_and_back(first.state_dict(weights)))
        for weight, value in zip(weights, iterate, strict=True):
            weight.data.copy_(value)
        over = (first if k < at else second).add()
    assert over
    for a, b in zip((second if at < 100 else first).mean.tensors, whole, strict=True):
        assert torch.equal(a, b)


class Interruption:
    """Ctrl-C at the n-th line that is executed."""

    def __init__(self, line: int) -> None:
        self._line, self.lines = line, 0

    def __call__(self, _: FrameType, event: str, __: object) -> Interruption:
        if event == "line":
            self.lines += 1
            if self.lines == self._line:
                signal.raise_signal(signal.SIGINT)
        return self


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As at a terminal: a shell has what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_ctrl_c_at_any_line_leaves_the_weights_in_the_model(dtype: torch.dtype) -> None:
    weights = [torch.full((3,), float(k), dtype=dtype) for k in range(2)]
    kept = deepcopy(weights)
    line = interrupted = 0
    while True:
        loop = loop_of(weights, 4)
        loop.mean.add(0)
        for mean in loop.mean.tensors:
            mean.add_(1)
        averaged = deepcopy(loop.mean.tensors)
        line, interruption = line + 1, Interruption(line + 1)
        before = sys.gettrace()
        gc.disable()  # what it calls would be interrupted instead
        try:
            sys.settrace(interruption)
            loop.at_mean(lambda: None)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            sys.settrace(before)
            gc.enable()
            torch.set_grad_enabled(True)  # torch.no_grad itself does not see Ctrl-C between its lines
        assert all(map(torch.equal, weights, kept)), line
        assert all(map(torch.equal, loop.mean.tensors, averaged)), line
        if interruption.lines < line:
            break
    assert interrupted > 20


def loop_of(weights: list[Tensor], steps: int) -> WindowLoop:
    loop = WindowLoop(Clock(Windows(first=steps)), "AutoLR")
    loop.follow([weight.requires_grad_() for weight in weights])
    loop.clock.begin(0)
    loop.open()
    return loop


def test_weights_that_diverge_end_the_window_early() -> None:
    weight = torch.ones(4)
    loop = loop_of([weight], 40)
    loop.open(size=2.0)
    assert not any(loop.add() for _ in range(12))
    weight.data.fill_(math.inf)
    taken = 13 + [loop.add() for _ in range(12)].index(True)
    assert loop.clock.end == taken < 40


@pytest.mark.parametrize("mean", [math.nan, 1e9])
def test_a_replica_that_diverged_has_no_part_in_the_mean_of_a_window(mean: float) -> None:
    """It has the weights of the others by now, and adds those."""

    def act(rank: Thread) -> float:
        weight = nn.Parameter(torch.full((3,), 2.0))
        context = Context("test", SGD([weight]), rank, None, True, tuple, nullcontext)
        path = WeightPath(context, (), Clock(Windows()))
        path.window.mean.tensors[0].fill_(mean if rank.rank else 4.0)
        path.converge()
        return float(path.window.mean.tensors[0][0])

    assert on_threads(2, act) == [3.0, 3.0]


def test_weights_that_one_part_of_a_replica_has_lost_are_lost() -> None:
    class Parts(Thread):
        def replica_norms(self, norms: Sequence[float]) -> list[float]:
            return [math.hypot(*column) for column in zip(*self.gather(norms), strict=True)]

    def act(rank: Thread) -> list[bool]:
        weight = nn.Parameter(torch.ones(3))
        parts = Parts(rank.rank, rank._said, rank._barrier)
        context = Context("test", SGD([weight]), parts, None, False, tuple, nullcontext)
        path = WeightPath(context, (), Clock(Windows()))
        before = path.is_finite()
        if rank.rank:
            weight.detach()[1] = math.nan
        return [before, path.is_finite()]

    assert on_threads(2, act) == [[True, False]] * 2


def test_weights_may_be_pointed_elsewhere_between_two_windows() -> None:
    weight = nn.Parameter(torch.zeros(2))
    mean = WindowMean([weight])
    weight.data = torch.full((2,), 3.0)
    mean.begin(1)
    mean.add(0)
    assert mean.tensors[0].tolist() == [3, 3]


@pytest.mark.parametrize("shape", [(3, 5), (40,), (), (0,), (2, 3, 4)])
@pytest.mark.parametrize("kept_in", [torch.float16, torch.float32])
def test_bfloat16_weights_and_their_mean_change_places(shape: tuple[int, ...], kept_in: torch.dtype) -> None:
    """The model holds the mean rounded to the nearest; the weights come back bit for bit, whatever bits they
    are, and a mean of their size as the model held it."""
    draw = torch.Generator().manual_seed(0)
    weight = torch.full(shape, 1.0 if kept_in == torch.float16 else 1e5).bfloat16()
    mean = WindowMean([weight])
    weight.copy_(torch.randint(-(2**15), 2**15, shape, generator=draw).short().view(torch.bfloat16))
    mean.tensors[0].copy_(
        torch.randn(shape, generator=draw) * 10.0 ** torch.randint(-3, 4, shape, generator=draw)
    )
    if weight.numel() > 2:
        mean.tensors[0].view(-1)[:2] = torch.tensor([math.inf, math.nan])
        weight.view(-1)[:2] = torch.tensor([math.nan, -0.0])
    before, exact = weight.clone(), mean.tensors[0].clone()
    for _ in range(2):
        mean.swap_()
        torch.testing.assert_close(weight, exact.bfloat16(), rtol=0, atol=0, equal_nan=True)
        mean.swap_()
        assert torch.equal(weight.view(torch.int16), before.view(torch.int16))
        back = exact if kept_in == torch.float32 else exact.bfloat16().to(kept_in)
        torch.testing.assert_close(mean.tensors[0], back, rtol=0, atol=0, equal_nan=True)


def test_weights_of_all_types_and_their_means_change_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "_PIECE_BYTES", 100)
    kinds = [torch.float32, torch.bfloat16, torch.float16, torch.float64] * 4
    weights = [noise(7, seed=k).to(kind) for k, kind in enumerate(kinds)]
    before = [weight.clone() for weight in weights]
    mean = WindowMean(weights)
    for kept in mean.tensors:
        kept.copy_(noise(7, seed=100))
    expected = [kept.to(kind, copy=True) for kept, kind in zip(mean.tensors, kinds, strict=True)]
    mean.swap_()
    assert all(map(torch.equal, weights, expected))
    mean.swap_()
    assert all(map(torch.equal, weights, before))


class Alive(TorchDispatchMode):
    """Counts the bytes of what is made within and has not been let go."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = function(*args, **(kwargs or {}))
        for made in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(made, Tensor) and not any(_same_memory(made, one) for one in tree_leaves(args)):
                size = made.numel() * made.element_size()
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(made, self._gone, size)
        return given

    def _gone(self, size: int) -> None:
        self.bytes -= size


def _same_memory(made: Tensor, given: object) -> bool:
    return (
        isinstance(given, Tensor) and made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    )


def test_averaging_and_swapping_low_precision_take_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole copies would be 1 × the weights for each iterate, and at the end of a window."""
    monkeypatch.setattr(window, "_PIECE_BYTES", 3 * 2 * 64 * 64)
    weights = [torch.randn(64, 64).bfloat16() for _ in range(32)]
    mean = WindowMean(weights)
    mean.begin(3)
    with Alive() as alive:
        for left in (2, 1, 0):
            mean.add(left)
        mean.swap_()
        mean.swap_()
    of_one = weights[0].numel() * weights[0].element_size()
    assert 0 < alive.peak <= 4 * of_one


class Calls(TorchDispatchMode):
    """Counts what a device would have to begin: all but views and memory."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not function.is_view and "empty" not in function.__name__
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_tensors_change_places_in_a_few_calls(dtype: torch.dtype) -> None:
    """A small model on a GPU waits for the host to begin each."""
    weights = [torch.randn(3).to(dtype) for _ in range(40)]
    mean = WindowMean(weights)
    with Calls() as calls:
        mean.swap_()
        mean.swap_()
    assert calls.count == 6


@pytest.mark.parametrize("tensors_at_once", [1, 3, 100])
def test_low_precision_is_averaged_piece_by_piece_and_bit_for_bit(
    tensors_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "_PIECE_BYTES", tensors_at_once * 2 * 6)
    weights = [torch.zeros(2, 3, dtype=torch.bfloat16) for _ in range(7)] + [torch.zeros(50).bfloat16()]
    iterates = [[torch.randn_like(weight) for weight in weights] for _ in range(5)]
    found = average(weights, iterates, WindowMean(weights))
    for k, mean in enumerate(found):
        expected = iterates[0][k].half()
        for count, iterate in enumerate(iterates[1:], start=2):  # in float32, and rounded once
            expected.copy_(expected.float().lerp_(iterate[k].float(), 1 / count))
        assert torch.equal(mean, expected)


# ---------------------------------------------------------------------- trail


def followed(weights: list[Tensor], moved: list[Tensor]) -> float:
    """How far a window's mean is said to have gone from these weights."""
    parameters = [nn.Parameter(weight.clone()) for weight in weights]
    optimizer = SGD(parameters, lr=1.0)
    context = Context("test", optimizer, SoloReplica(), None, False, tuple, nullcontext)
    path = WeightPath(context, (), Clock(Windows()))
    path.start()
    for mean, weight, by in zip(path.window.mean.tensors, weights, moved, strict=True):
        mean.copy_(weight + by)
    return path.displacements()[0]


def carried(weight: Tensor, iterates: list[Tensor]) -> float:
    """How far a window of these iterates is said to have gone from this weight."""
    parameter = nn.Parameter(weight.clone())
    context = Context("test", SGD([parameter], lr=1.0), SoloReplica(), None, False, tuple, nullcontext)
    path = WeightPath(context, (), Clock(Windows(first=len(iterates))))
    path.window.clock.begin(0)
    path.window.open()
    path.start()
    for iterate in iterates:
        parameter.data.copy_(iterate)
        path.window.add()
    return path.displacements()[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [1e-7, 1e-5, 1e-3, 0.02, 1.0, 300.0, 5e4])
@pytest.mark.parametrize("count", [1000, 100_000])
def test_weights_that_did_not_move_have_gone_nowhere(dtype: torch.dtype, size: float, count: int) -> None:
    weight = (size * noise(count)).clamp(-6e4, 6e4).to(dtype)
    assert carried(weight, [weight] * 15) == 0.0


@pytest.mark.parametrize("at", [1, 8, 14])
@pytest.mark.parametrize("up", [1, -1])
def test_a_move_by_the_last_bit_counts(at: int, up: int) -> None:
    """Of every value between 1 and 2; it takes place after so many of 15 iterates."""
    weight = torch.arange(0x3F81, 0x4000, dtype=torch.int16).view(torch.bfloat16)
    moved = (weight.view(torch.int16) + up).view(torch.bfloat16)
    iterates = [weight] * at + [moved] * (15 - at)
    for value, own in zip(weight, zip(*iterates, strict=True), strict=True):
        assert carried(value, list(own)) > 0
    by = float((moved.double() - weight.double()).norm() / weight.double().norm())
    assert 0.5 < carried(weight, iterates) / (by * (15 - at) / 15) < 2


def test_the_mean_of_bfloat16_weights_takes_as_much_memory_as_they_do() -> None:
    parameters = [nn.Parameter(noise(300, 300).bfloat16()), nn.Parameter(torch.zeros(300).bfloat16())]
    context = Context("test", SGD(parameters), SoloReplica(), None, False, tuple, nullcontext)
    path = WeightPath(context, (), Clock(Windows()))
    sketch_bytes = 8 * 65_536
    assert path.bytes() - sketch_bytes == sum(p.numel() * p.element_size() for p in parameters)


@pytest.mark.parametrize("shapes", [[(40, 30), (30,), (5, 2)], [(300, 300), (20,), (400, 3)]])
def test_every_tensor_counts_by_its_number_of_values_and_its_own_size(shapes: list[tuple[int, ...]]) -> None:
    """The slow twin, of fewer values than a sketch has bins and of more."""
    weights = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
    moved = [0.01 * (i + 1) * noise(*shape, seed=-1 - i) for i, shape in enumerate(shapes)]
    squares, count = 0.0, 0
    for weight, by in zip(weights, moved, strict=True):
        squares += float((by / weight.square().mean().sqrt()).square().sum())
        count += weight.numel()
    assert followed(weights, moved) == pytest.approx(math.sqrt(squares / count), rel=0.02)
    scaled = followed([1000 * weights[0], *weights[1:]], [1000 * moved[0], *moved[1:]])
    assert scaled == pytest.approx(followed(weights, moved), rel=0.02), "whatever scale one of them has"


def test_tensors_that_begin_small_count_with_a_share_of_their_usual_size() -> None:
    at_zero = followed([torch.zeros(9, 16)], [torch.full((9, 16), 0.01)])
    assert at_zero == pytest.approx(0.01 * 4), "a matrix with rows of 16 usually has a size of a quarter"
    tiny = followed([torch.full((9, 16), 1e-9)], [torch.full((9, 16), 0.01)])
    assert tiny == pytest.approx(10 * at_zero), "a tenth of that, at least"


def test_an_embedding_that_has_nearly_all_of_the_norm_does_not_hide_the_rest() -> None:
    """The layers behind it move many times as fast, relative to their size; what one vector of all weights
    does tells nothing of them. A sweep finds 0.01 and a loss of 1.03, and nothing is learnt at 0.03."""
    teacher = noise(2000, 4, seed=5)

    def samples(seed: int, count: int) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 2000, (count, 8), generator=torch.Generator().manual_seed(seed))
        return x, teacher[x].sum(1).argmax(1)

    torch.manual_seed(0)
    body = [nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)]
    model = nn.Sequential(nn.Embedding(2000, 64), nn.Flatten(), *body)
    loss = lambda batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    optimizer = AdamW(model.parameters())
    probe = Probe(loss, [samples(10_000 + i, 128) for i in range(8)], model=model)
    auto = AutoLR(optimizer, total_steps=600, probe=probe)
    for step in range(600):
        optimizer.zero_grad()
        loss(samples(step, 64)).backward()
        optimizer.step()
        auto.step()
    best = auto.finish_()
    assert best is not None
    assert best.estimate < 1.1


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_weights_that_begin_at_zero_are_trained(kind: str) -> None:
    """Logistic regression from zero, with no norm to measure speed by."""

    def logistic(model: nn.Module, x: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), (x @ W > 0).float())

    def final(lr: float | None) -> float:
        model = nn.Linear(8, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = (
            AdamW(model.parameters(), lr=lr or 1.0)
            if kind == "adamw"
            else SGD(model.parameters(), lr or 1.0, 0.9)
        )
        auto = AutoLR(optimizer, total_steps=1000, probe=probe_of(model, logistic)) if lr is None else None
        for i in range(1000):
            optimizer.zero_grad()
            logistic(model, X[i % 200]).backward()
            optimizer.step()
            if auto is not None:
                auto.step()
            else:
                optimizer.param_groups[0]["lr"] = lr * min(1.0, (1000 - i) / 250)  # type: ignore[operator]
        with torch.no_grad():
            return float(torch.stack([logistic(model, x) for x in X[300:]]).mean())

    best = min(final(lr) for lr in (0.03, 0.1, 0.3, 1.0))
    assert (final(None) - best) / (0.6931 - best) < 0.12


def test_layers_freed_during_a_run_are_followed() -> None:
    model = network()
    model[0].requires_grad_(False)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    optimizer = AdamW(groups)
    auto = AutoLR(optimizer, total_steps=400, probe=probe_of(model))

    def free(i: int) -> None:
        if i == 100:
            model[0].requires_grad_(True)
        if i == 260:
            with torch.no_grad():
                model[0].weight.fill_(float("nan"))

    train(model, optimizer, auto, 400, at=free)
    assert max(group["lr"] for group in optimizer.param_groups) < 10
    assert squared(model, X[300]).item() < 0.05


# ---------------------------------------------------------------------- sketch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 100, 65_536])
def test_what_is_small_is_its_own_sketch(size: int) -> None:
    vector = noise(size)
    assert torch.equal(sketch([vector]), vector)


@pytest.mark.parametrize(
    "shapes", [[(70_000,)], [(300, 1000), (1000,), (5,)], [(200_000,)] * 4, [(7,)] * 20_000]
)
def test_distances_are_kept(shapes: list[tuple[int, ...]]) -> None:
    here = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
    there = [a + 0.01 * noise(*a.shape, seed=-1 - i) for i, a in enumerate(here)]
    true = torch.cat([(a - b).flatten() for a, b in zip(here, there, strict=True)]).double().norm()
    assert float((sketch(here) - sketch(there)).norm() / true) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("rows", [2, 3, 64, 256])
def test_rows_that_move_alike_do_not_deceive_it(rows: int) -> None:
    """The same movement in every row of a matrix as wide as there are bins, and in one not as wide."""
    for width in (65_536, 40_000):
        moved = noise(width).expand(rows, width).contiguous()
        assert float(sketch([moved]).norm() / moved.double().norm()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("shapes", [[(10,)], [(10,), (3, 5)], [(70_000,), (3, 5), (300, 1000)]])
def test_of_shards_it_is_that_of_the_whole(shapes: list[tuple[int, ...]]) -> None:
    """A rank that has everything adds what one rank alone would have made."""
    whole = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
    torch.testing.assert_close(sketch_of_shards(whole, whole, [1.0] * len(whole)), sketch(whole).double())


def test_it_is_linear() -> None:
    a, b = noise(100_000), noise(100_000, seed=1)
    assert torch.allclose(sketch([a]) - sketch([b]), sketch([a.double() - b.double()]), atol=1e-5)


def test_small_movements_are_not_lost_in_rounding() -> None:
    a = noise(1_000_000)
    b = a * (1 + 1e-5)
    true = (a.double() - b.double()).norm()
    assert float((sketch([a]) - sketch([b])).norm() / true) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_many_pieces_at_once_are_the_same_as_one_after_the_other(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, and its slow twin; scales that are no power of two are rounded at another place."""
    monkeypatch.setattr(window, "_PIECES", 4)
    sizes = [3, 65_536, 0, 70_000, 4 * 65_536, 9 * 65_536, 1, 8 * 65_536 + 5, 2 * 65_536]
    for scale, rtol in ((0.5, 0.0), (0.3, 1e-6)):
        slow, fast = (_Bins(torch.zeros(1), gathers=gathers) for gathers in (False, True))
        for k, size in enumerate(sizes):
            for bins in (slow, fast):
                bins.add(noise(max(size, 1), seed=k)[:size].to(dtype), scale * 2**k)
        expected = slow.total()
        largest = float(expected.abs().max())
        torch.testing.assert_close(fast.total(), expected, rtol=0, atol=max(1e-12, rtol * largest))


def test_a_gpu_begins_few_calls_for_many_tensors() -> None:
    tensors = [noise(2_000, seed=k) for k in range(60)]
    bins = _Bins(tensors[0], gathers=True)
    with Calls() as calls:
        for tensor in tensors:
            bins.add(tensor)
        bins.total()
    assert calls.count <= 24


def test_signs_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [noise(70_000)]
    first = sketch(many)
    monkeypatch.setattr(torch, "randint", lambda *_, **__: pytest.fail("drawn again"))
    assert torch.equal(sketch(many), first)


# ---------------------------------------------------------------------- alarm


def looks(steps: int, *, lost_at: int, by: float) -> list[bool]:
    weights = [torch.ones(4), torch.ones(3, 3)]
    alarm = Alarm(weights, size=math.sqrt(13), steps=steps)
    rang = []
    for step in range(1, steps + 1):
        if step == lost_at:
            weights[1][0, 0] = by
        rang.append(alarm.rings())
    return rang


@pytest.mark.parametrize("by", [math.nan, math.inf, 1e6])
@pytest.mark.parametrize("steps", [4, 10, 100])
def test_it_rings_within_a_quarter(by: float, steps: int) -> None:
    at = steps // 2
    rang = looks(steps, lost_at=at, by=by)
    assert not any(rang[: at - 1])
    assert any(rang[: at + max(2, steps // 4)])


@pytest.mark.parametrize("by", [0.0, -1.0, 50.0])
def test_weights_of_their_usual_size_do_not_ring(by: float) -> None:
    assert not any(looks(100, lost_at=10, by=by))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_device_what_was_seen_is_read_a_look_later() -> None:
    weight = torch.ones(8, device="cuda")
    alarm = Alarm([weight], size=3.0, steps=8)
    weight.fill_(math.nan)
    assert [alarm.rings() for _ in range(4)] == [False, False, False, True]
