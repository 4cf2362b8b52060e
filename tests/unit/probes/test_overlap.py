"""Samples of the probe that are trained on: found by the model's inputs, and nothing else taken for it."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from hdet import AutoLR, BestMean, Probe
from hdet.probes import overlap
from hdet.probes.overlap import Overlap, checksums, compare

pytestmark = pytest.mark.usefixtures("same_seed")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """Takes anything of floats or integers, and comes to the same whatever it is."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = next(iter((*args, *kwargs.values())))
        return self.scale + 0 * x.double().reshape(len(x), -1).mean(1)


class Watched:
    """A model under AutoLR that trains on ``data``, batches of it in order, and probes ``held_out``."""

    def __init__(self, data: Tensor, held_out: Tensor, *, batch: int = 16, call: Any = None) -> None:
        self.model = Model()
        self.call: Callable[[Any], Tensor] = call or self.model
        self.data, self.batch = data, batch
        self.optimizer = SGD(self.model.parameters(), 1.0)
        self.probe = Probe(self.loss, held_out.split(batch), model=self.model)
        self.records: list[Any] = []
        self.auto = AutoLR(self.optimizer, probe=self.probe, total_steps=400)

    def loss(self, x: Any) -> Tensor:
        return (self.call(x) - 3).square().mean()

    def run(self, steps: int) -> Watched:
        for k in range(steps):
            batches = self.data.split(self.batch)
            self.optimizer.zero_grad()
            self.loss(batches[k % len(batches)]).backward()
            self.optimizer.step()
            record = self.auto.step()
            self.records += [record] if record else []
        return self

    @property
    def warnings(self) -> list[str]:
        return [event for record in self.records for event in record.events if "were trained on" in event]

    @property
    def hooks(self) -> int:
        return len(self.model._forward_pre_hooks)


# ---------------------------------------------------------------------- what is found


def test_a_probe_of_training_samples_gives_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    data = draw(320, 6)
    run = Watched(data, data[80:]).run(200)
    assert run.warnings == [
        "64 of 64 probe samples were trained on (among the first 144 training samples): the learning rate "
        "and the choice of weights are fitted to data that the model memorises, and the held-out loss is too "
        "low; take batches out of the training data with hdet.Probe.set_aside, or give Probe a held-out set"
    ]
    assert run.records[0].events == tuple(run.warnings), "and recorded, at the first sync"
    logged = [r for r in caplog.records if "were trained on" in r.getMessage()]
    assert [r.levelno for r in logged] == [logging.WARNING]


def test_two_samples_are_enough_once_many_were_seen() -> None:
    data, held_out = draw(16 * 50, 6), draw(128, 6, seed=1)
    held_out[5], held_out[40] = data[16 * 40], data[16 * 45]
    run = Watched(data, held_out).run(100)
    (warning,) = run.warnings
    assert warning.startswith("2 of 64 probe samples were trained on")
    assert [record.step for record in run.records if any("trained on" in e for e in record.events)] == [50]


def test_images_and_tokens() -> None:
    """Of large samples a part of the values is enough; integers are as good as floats."""
    images = draw(320, 3, 40, 40)
    assert Watched(images, images[:64]).run(20).warnings
    ids = torch.randint(1000, (320, 5), generator=torch.Generator().manual_seed(0))
    assert Watched(ids, ids[:64]).run(20).warnings


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_a_sample_has_one_checksum_in_any_batch(dtype: torch.dtype) -> None:
    data = torch.arange(1, 3001).reshape(30, 100).to(dtype).contiguous()
    whole, backwards = checksums(data), checksums(data.flip(1))
    assert whole is not None
    assert backwards is not None
    one = [checksums({"x": [part]}) for part in data.split(1)]
    assert torch.cat([sums for sums in one if sums is not None]).equal(whole)
    assert len(whole.unique()) == (len(data.unique(dim=0)) if dtype == torch.bfloat16 else 30)
    assert not torch.isin(backwards, whole).any()


def test_a_sample_that_differs_in_one_value_has_another_checksum() -> None:
    """By a product with an odd number, integers of 64 bits are only put in another order: two that differ
    stay different."""
    weights = overlap._weights(0, 1024, torch.device("cpu"))
    assert bool((weights % 2 == 1).all())
    assert len(weights.unique()) == 1024


def test_integers_that_a_float_holds_do_not_collide() -> None:
    """Small numbers differ in the high bits of a float only."""
    every = torch.cartesian_prod(*[torch.arange(6)] * 6)
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        sums = [found for part in every.to(dtype).split(1024) if (found := checksums(part)) is not None]
        assert len(torch.cat(sums).unique()) == len(every), dtype


def test_all_tensors_of_a_sample_count() -> None:
    """One image with two questions is two samples."""
    image, question = draw(16, 20), torch.arange(16).reshape(16, 1)
    a, b = checksums((image, question)), checksums(([image], {"q": question + 1}))
    assert a is not None
    assert b is not None
    assert not torch.isin(a, b).any()


def test_zeros_at_the_end_are_padding() -> None:
    data = draw(16, 20)
    a, b = checksums(data), checksums(nn.functional.pad(data, (0, 7)))
    assert a is not None
    assert b is not None
    assert a.equal(b)


def test_best_mean_warns_too(caplog: pytest.LogCaptureFixture) -> None:
    model, data = nn.Linear(6, 1), draw(320, 6)
    best = BestMean(model, Probe(lambda x: model(x).square().mean(), data.split(16), model=model))
    optimizer = SGD(model.parameters(), 0.01)
    for k in range(100):
        optimizer.zero_grad()
        model(data.split(16)[k % 20]).square().mean().backward()
        optimizer.step()
        best.step()
    (logged,) = (record.getMessage() for record in caplog.records)
    assert logged.startswith("BestMean: step 10: ")
    assert "Probe.set_aside" in logged
    assert not model._forward_pre_hooks


# ---------------------------------------------------------------------- what is not


def test_other_samples_give_no_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after 64 forward passes nothing is looked at any more."""
    taken: list[int] = []
    plain = checksums
    monkeypatch.setattr(overlap, "checksums", lambda inputs: taken.append(1) or plain(inputs))
    run = Watched(draw(3200, 6), draw(128, 6, seed=1))
    assert run.hooks == 0, "a model may be captured, or scripted, before training begins"
    run.run(150)
    assert not run.warnings
    assert not caplog.records
    assert run.hooks == 0
    assert len(taken) <= 2 * 64


def zeros_among(data: Tensor, every: int) -> Tensor:
    data[::every] = 0
    return data


def kinds(count: int, seed: int) -> Tensor:
    """Samples that are one of some vectors: precomputed features of so many things."""
    of = torch.randint(count, (640,), generator=torch.Generator().manual_seed(seed))
    return draw(count, 50)[of]


def tokens(values: int, length: int, seed: int) -> Tensor:
    return torch.randint(values, (640, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: zeros_among(draw(640, 6, seed=seed), 5),
        lambda seed: tokens(13, 4, seed),
        lambda seed: nn.functional.pad(tokens(9, 4, seed), (0, 60)),
        lambda seed: kinds(50, seed),
        lambda seed: kinds(5000, seed),
    ],
    ids=["zeros", "13⁴", "padded", "50 kinds", "5000 kinds"],
)
def test_samples_that_are_alike_by_nature_are_no_overlap(make: Callable[[int], Tensor]) -> None:
    watch = Overlap(Probe(lambda x: 0.0, [1], model=nn.Linear(1, 1)))
    for seed in range(1, 21):
        trained, probed = ([checksums(x) for x in make(s).split(16)] for s in (seed, seed + 100))
        for forwards in (9, 19, 29, 40):
            row = [*compare(trained[:forwards], probed[:4]), 1.0, 1.0]  # type: ignore[arg-type]
            assert watch.found([row]) == ""


def test_one_input_for_all_is_no_overlap() -> None:
    """A graph, of which the loss takes some nodes in training and others in the probe."""
    graph = draw(32, 8)
    assert not Watched(graph, graph, batch=32).run(20).warnings


def test_validation_is_not_training() -> None:
    data, held_out = draw(320, 6), draw(64, 6, seed=1)
    run = Watched(data, held_out).run(2)
    run.model.eval()
    run.loss(held_out)
    run.model.train()
    with torch.no_grad():
        run.loss(held_out)
    run.probe.losses(held_out.split(16))
    assert not run.run(80).warnings


# ---------------------------------------------------------------------- nothing is in the way


def test_a_run_that_is_forgotten_leaves_no_hook() -> None:
    run = Watched(draw(320, 6), draw(64, 6)).run(3)
    model = run.model
    assert run.hooks == 1
    run.optimizer, run.auto, run.probe = None, None, None  # type: ignore[assignment]
    del run
    gc.collect()
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_the_model_is_not_watched(copied: Any) -> None:
    data = draw(320, 6)
    run = Watched(data, data[:64]).run(3)
    other = copied(run.model)
    other(data[:64])
    (hook,) = other._forward_pre_hooks.values()
    assert hook._overlap is None


@pytest.mark.parametrize(
    "inputs",
    [
        (None, "text", 3),
        (torch.zeros(0, 6),),
        (torch.tensor(3.0), torch.arange(8)),
        (torch.zeros(8, 6, device="meta"),),
        (torch.eye(8).to_sparse(),),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_a_model_is_given(inputs: tuple[Any, ...]) -> None:
    model = nn.Module()
    model.forward = lambda *a, **k: torch.zeros(())  # type: ignore[method-assign]
    probe = Probe(lambda x: model(*inputs, flag=True), [1, 2], model=model)
    watch = Overlap(probe)
    watch.watch()
    for _ in range(3):
        model(*inputs, flag=True)
    watch.prepare()
    probe.losses([1, 2])
    assert watch.found([watch.row()]) == ""


def test_within_a_transform() -> None:
    model, x = nn.Linear(6, 1), draw(8, 6)
    watch = Overlap(Probe(lambda x: model(x).mean(), [x], model=model))
    watch.watch()
    torch.vmap(model)(x)
    torch.func.jacrev(lambda x: model(x).sum())(x)
    watch._probe.losses([x])
    assert watch.found([watch.row()]) == ""


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sum(1).tanh()


@pytest.mark.parametrize("how", ["inner", "outer"])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_compiled_as_often_as_without(how: str) -> None:
    def compiled(watched: bool) -> tuple[int, str]:
        torch._dynamo.reset()
        graphs: list[int] = []

        def backend(graph: Any, _: object) -> Any:
            graphs.append(1)
            return graph.forward

        model = Compiled()
        run: Any = torch.compile(model, backend=backend, fullgraph=True)
        data = draw(320, 6).split(16)
        probe = Probe(lambda x: run(x).mean(), data[:4], model=run if how == "outer" else model)
        watch = Overlap(probe)
        warning = ""
        for k in range(100):
            run(data[k % 20]).mean().backward()
            if watched:
                watch.watch()
            if k % 10 == 9:
                if watched:
                    watch.prepare()
                probe.losses(data[:4])
                warning = warning or (watch.found([watch.row()]) if watched and not watch.settled else "")
        assert not run._forward_pre_hooks
        return len(graphs), warning

    plain, watched = compiled(False), compiled(True)
    assert plain[0] == watched[0] > 0
    assert bool(watched[1]) == (how == "outer")


def test_a_wrapper_and_what_it_wraps_are_one() -> None:
    """Training calls the wrapper, and the loss function the module in it."""

    class DistributedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)  # type: ignore[no-any-return]

    inner, data = nn.Linear(6, 1), draw(64, 6)
    model = DistributedDataParallel(inner)
    watch = Overlap(Probe(lambda x: inner(x).mean(), data.split(16), model=model))
    watch.watch()
    for x in data.split(32):
        model(x)
    watch._probe.losses(data[:32].split(16))
    assert watch.found([watch.row()]).startswith("32 of 32")


# ---------------------------------------------------------------------- what follows from checksums


def test_several_ranks_are_counted_together() -> None:
    watch = Overlap(Probe(lambda x: 0.0, [1], model=nn.Linear(1, 1)))
    assert watch.found([[1, 64, 100, 0.0, 1, 7], [0, 64, 100, 0.0, 1, 8]]) == ""
    assert watch.found([[1, 64, 100, 0.0, 1, 7]] * 2).startswith("2 of 128 probe samples")
    assert watch.settled
    assert watch.row() == []


def test_ranks_with_the_same_batches_are_told_once() -> None:
    def row_of(*batches: Tensor) -> tuple[Overlap, list[float]]:
        model = nn.Linear(6, 1)
        watch = Overlap(Probe(lambda x: model(x).mean(), [draw(4, 6)], model=model))
        watch.watch()
        for x in batches:
            model(x)
        return watch, watch.row()

    data = draw(96, 6).split(32)
    watch, row = row_of(data[0], data[1])
    _, same = row_of(data[0], data[2])
    _, other = row_of(data[1], data[0])
    _, none = row_of()
    assert row[-1] == same[-1] != other[-1] != none[-1] == 0.0
    assert watch.same_batches([row, none]) == watch.same_batches([row]) == ""
    assert watch.same_batches([row, same, row]).startswith("all 3 ranks train on the same batches")
    assert watch.same_batches([row, same]) == ""
    assert row_of(data[0])[0].same_batches([row, same, other]) == ""


def test_a_second_pass_is_no_coincidence() -> None:
    """Training that repeats itself does not make overlap look natural; training full of twins does."""
    numbers = torch.arange(64)
    twice = [*numbers.split(8), *numbers.flip(0).split(8)]
    both, probed, trained, chance = compare(twice, [numbers[:20]])
    assert (both, probed, trained) == (20, 20, 64)
    assert both > 4 * chance
    again = compare(twice, [numbers[:10], numbers[10:20], numbers[:10]])
    assert again == (both, probed, trained, chance), "nor of the probe"
    twins = [torch.tensor([k, k, k + 1000, k + 2000, k + 3000]) for k in range(12)]
    both, _, _, chance = compare(twins, [numbers[:20]])
    assert both == 12
    assert both < 4 * chance
