"""A state says what it is, goes through any file, and is loaded whole or not at all."""

from __future__ import annotations

import enum
import io
import json
import random
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

import hdet
from hdet.loop.state import FORMAT, Own, Owner, Piece, check_fits, checksum, digest, pieces_of, plain
from hdet.replicas import SoloReplica
from tests.states import forged, seal
from tests.unit.doors import DOORS, Made

WEIGHT = nn.Parameter(torch.arange(6.0).reshape(2, 3))


def owner(kind: str = "Door", **configuration: Any) -> Owner:
    return Owner(kind, configuration, SoloReplica(), [WEIGHT])


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# ---------------------------------------------------------------------- what a state is


@pytest.mark.parametrize("kind", DOORS)
def test_what_a_state_says_of_itself(kind: str) -> None:
    (said,) = Made(kind).state()["state"]
    assert (said["class"], said["format"], said["hdet"]) == (kind, FORMAT, hdet.__version__)


@pytest.mark.parametrize("kind", DOORS)
@pytest.mark.parametrize("at", [15, 43])
def test_there_and_back_through_any_file(kind: str, at: int) -> None:
    made = Made(kind).train(at)
    state = through_a_file(made.door.state_dict())
    fresh = Made(kind).train(at)
    fresh.door.load_state_dict(state)
    assert digest(fresh.state()["state"]) == digest(state["state"])
    if not state["tensors"]:
        fresh.door.load_state_dict(json.loads(json.dumps(state)))


def test_the_state_of_a_users_scheduler_comes_back_as_it_was() -> None:
    """MultiStepLR counts its milestones in a Counter."""

    def made() -> Made:
        return Made("AutoLR", schedule=lambda optimizer: MultiStepLR(optimizer, [5, 20]))

    state, again = through_a_file(made().train(15).state()), made()
    again.door.load_state_dict(state)
    again.train(10)


def test_keys_of_tensors_do_not_tell_how_far_a_run_has_come() -> None:
    """What a distributed checkpoint sees of a run that has not begun is what it sees of one that has."""
    made = Made("AutoLR")
    fresh = set(made.state()["tensors"])
    later = set(made.train(43).state()["tensors"])
    new = later - fresh
    assert fresh <= later
    assert all("/snapshot/kept/state/" in key for key in new), "made by the optimizer's first step"


def test_spare_room_is_memory_of_its_own() -> None:
    """A checkpoint is loaded in place: it must not write into the weights that stand there."""
    made = Made("AutoLR")
    before = deepcopy(made.model.state_dict())
    for tensor in made.door.state_dict()["tensors"].values():
        tensor.fill_(7)
    assert digest(made.model.state_dict()) == digest(before)


def test_spare_room_is_not_read_and_pieces_are_not_copied() -> None:
    kept = torch.zeros(2, 3)
    spare = owner().pack({"best": pieces_of({0: lambda: torch.full((2, 3), 9.0)}, [WEIGHT])})
    state = owner().pack({"best": pieces_of({0: kept}, [WEIGHT]), "rows": [(1, None)]})
    assert spare["tensors"].keys() == state["tensors"].keys() == {"best/0", "ruler"}
    assert owner().unpack(spare)[0] == {"best": {}}
    assert owner().unpack(state)[0]["best"][0].data_ptr() == kept.data_ptr()
    assert owner().unpack(state)[0]["rows"] == [(1, None)]


def test_what_numpy_and_enumerations_hold_can_be_read_back() -> None:
    """``np.float64`` is a float, and nothing that ``weights_only`` reads."""

    class Color(str, enum.Enum):
        RED = "red"

    values = {"a": np.logspace(-3, -1, 3)[1], "b": np.float32(0.5), "c": [np.int64(3), np.bool_(True)]}
    values |= {"d": np.str_("x"), "e": Color.RED, "f": enum.IntEnum("Number", "ONE").ONE}  # type: ignore[attr-defined]
    assert through_a_file(plain(values)) == values
    made = Made("AutoLR", optimizer=lambda *a, **k: AdamW(*a, weight_decay=values["a"], **k)).train(15)
    made.door.load_state_dict(through_a_file(made.door.state_dict()))


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("kind", DOORS)
def test_other_states_are_refused(kind: str) -> None:
    made = Made(kind).train(15)
    for other in DOORS:
        if other != kind:
            made.refuses(Made(other).state(), rf"{kind}.load_state_dict: the state must be {kind}'s, got")
    cosine = CosineAnnealingLR(SGD([torch.ones(1)], lr=1.0), 10).state_dict()
    empty: list[Any] = [{}, {"state": (), "tensors": {}}, {"state": ({},), "tensors": {}}, None, 3]
    for state in (*empty, cosine, made.optimizer.state_dict(), made.model.state_dict()):
        made.refuses(state, rf"{kind}.load_state_dict: the state (must be|is damaged)")


@pytest.mark.parametrize("number", [3, FORMAT + 1])
def test_another_format_is_refused(number: int) -> None:
    made = Made("AutoLR").train(15)
    state = made.state()
    state["state"][0].update(format=number, hdet="9.1")
    made.refuses(
        state, rf"must be of format {FORMAT}, .*written by hdet 9\.1, format {number}: use that version"
    )


def test_other_runs_are_refused() -> None:
    def state_of(kind: str, **options: Any) -> dict[str, Any]:
        return Made(kind, **options).train(15).state()

    made = Made("AutoLR").train(15)
    made.refuses(
        state_of("AutoLR", width=5), r"shapes \(number 0\) must be as it was .* \[5, 3\], got \[4, 3\]"
    )
    made.refuses(state_of("AutoLR", schedule="cosine"), "schedule must be as it was")
    made.refuses(state_of("AutoLR", optimizer=SGD), "optimizers .*must be as it was .*, SGD, got Adam")
    Made("AutoLR", schedule="cosine").train(15).refuses(state_of("AutoLR"), "schedule must be as it was")
    decay = state_of("Ensemble", explore=[hdet.WeightDecay()], optimizer=AdamW)
    Made("Ensemble", optimizer=AdamW).train(15).refuses(decay, r"explored .*must be as it was .*weight_decay")
    one_cycle = Made("OneCycleAutoLR").train(15)
    one_cycle.refuses(state_of("OneCycleAutoLR", total_steps=800), "total_steps must be .*800, got 400")
    other = state_of("OneCycleAutoLR", ensemble_lr_spread_ratio=1 / 9)
    one_cycle.refuses(other, r"spread \(number 0\) must be as it was .* 0\.1111111111111111, got 0\.0")


def test_other_parameters_in_training_are_refused() -> None:
    made = Made("AutoLR")
    frozen = Made("AutoLR", optimizer=lambda parameters, lr: SGD(_without_first(parameters), lr=lr))
    made.train(15).refuses(frozen.train(15).state(), "must be as it was")
    for name in ("weight", "bias"):
        getattr(made.model[0], name).requires_grad_(False)
    state = made.state()
    assert forged(state)["engine"]["policies"][0]["kind"] == "horizon"
    again = Made("AutoLR")
    again.model[0].weight.requires_grad_(False)
    again.door = hdet.AutoLR(again.optimizer, probe=again.door._horizon._probe, total_steps=400)
    again.refuses(state, "trained must be as it was when the state was saved")


def test_parameters_in_another_order_are_refused() -> None:
    """Of equal shapes, which nothing else could tell apart."""

    def made(order: tuple[int, ...]) -> tuple[nn.Sequential, hdet.AutoLR]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 1))
        data = torch.randn(20, 8, 3)
        probe = hdet.Probe(lambda x: model(x).square().mean(), data, model=model)
        optimizer = SGD([p for i in order for p in model[i].parameters()], lr=0.1)
        return model, hdet.AutoLR(optimizer, probe=probe, total_steps=100)

    _, auto = made((0, 1, 2))
    with pytest.raises(
        ValueError, match=r"parameter names \(number 0\) must be as .* 0\.weight, got 1\.weight"
    ):
        made((1, 0, 2))[1].load_state_dict(auto.state_dict())
    wrapped, again = made((0, 1, 2))
    again._cycle._model = nn.Sequential(OrderedDict(module=wrapped))  # as DDP calls them
    again.load_state_dict(auto.state_dict())


def _without_first(parameters: Any) -> list[nn.Parameter]:
    return list(parameters)[1:]


def test_a_plain_one_cycles_state_is_loaded_if_it_is_as_long() -> None:
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    plain_one = OneCycleLR(optimizer, 0.1, total_steps=400, cycle_momentum=False)
    for _ in range(7):
        optimizer.step()
        plain_one.step()
    made = Made("OneCycleAutoLR")
    made.door.load_state_dict(plain_one.state_dict())
    assert made.door.last_epoch == 7
    Made("OneCycleAutoLR", total_steps=200).refuses(
        plain_one.state_dict(), "total_steps must be as when the state was saved, 400, got 200"
    )


def test_what_has_not_come_with_a_state_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """A distributed checkpoint fills what a fresh object asks for."""
    packed = owner().pack({"state": {"exp_avg": Piece(WEIGHT, WEIGHT)}})
    packed["tensors"].pop("state/exp_avg")
    with pytest.raises(
        ValueError, match=r"1 are missing, the first is 'state/exp_avg'.*Load the optimizer first"
    ):
        owner().unpack(packed)
    packed = owner().pack({"first": Piece(WEIGHT, WEIGHT, may_miss=True)})
    packed["tensors"].pop("first")
    assert owner().unpack(packed)[0] == {}
    assert "no room for 1 tensors" in caplog.text


def test_what_cannot_be_cut_is_this_ranks_own() -> None:
    state = owner().pack({"codes": Own(torch.ones(5)), "best": Piece(WEIGHT, WEIGHT)})
    assert state["tensors"] == {}, "a checkpoint must not look into it"
    assert torch.equal(owner().unpack(state)[0]["codes"], torch.ones(5))
    state["state"][0]["part"] = [1, 2]
    seal(state)
    with pytest.raises(
        ValueError, match="must be of this rank's own part of the model, 0 of 1, got another's"
    ):
        owner().unpack(state)


def test_shards_that_know_where_they_lie_are_not_loaded_where_they_do_not() -> None:
    state = owner().pack({"best": Piece(WEIGHT, WEIGHT)})
    flat = owner()
    flat.replicas.can_reshard = False
    with pytest.raises(ValueError, match=r"those of this one, part 0 of 1, do not .*; shard it with fully_"):
        flat.unpack(state)


def test_a_state_that_lacks_a_name_or_has_other_shapes_does_not_fit() -> None:
    mine = {"steps": 0, "best": {0: Piece(WEIGHT, WEIGHT)}, "kept": {"loss": 1.0}, "rows": [1]}
    check_fits("Door", mine, {"steps": 3, "best": {}, "kept": None, "rows": [], "more": 1})
    with pytest.raises(ValueError, match=r"Door\.load_state_dict: .* lacks 'kept/loss'"):
        check_fits("Door", mine, {"steps": 3, "best": {}, "kept": {}, "rows": []})
    with pytest.raises(ValueError, match=r"same shapes: 'best/0' is of shape \(3,\), .* of \(2, 3\)"):
        check_fits("Door", mine, {"steps": 3, "best": {0: torch.ones(3)}, "kept": None, "rows": []})


# ---------------------------------------------------------------------- damage


def seen(made: Made) -> str:
    """All values; the sums of tensors are among them."""
    return str(made.door.state_dict()["state"][0]["checksum"])


@pytest.mark.parametrize("kind", DOORS)
def test_a_flipped_bit_is_found(kind: str) -> None:
    """100 files with one bit flipped: refused, or with the very same state in them."""
    made = Made(kind).train(43)
    file = io.BytesIO()
    torch.save(made.door.state_dict(), file)
    whole, good, chance = file.getvalue(), seen(made), random.Random(0)
    refused = 0
    for _ in range(100):
        bits = bytearray(whole)
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        try:
            made.door.load_state_dict(torch.load(io.BytesIO(bytes(bits)), weights_only=True))
        except Exception:
            refused += 1
        assert seen(made) == good
    assert refused > 25


@pytest.mark.parametrize("kind", DOORS)
def test_a_value_that_was_changed_is_found(kind: str) -> None:
    """Each single one: steps −5, a factor that is NaN, a window without an end."""
    made = Made(kind).train(15)
    state = made.state()
    for home, key in places(state["state"][0]):
        before, home[key] = home[key], -5 if home[key] is None or isinstance(home[key], str) else None
        with pytest.raises(ValueError, match=rf"{kind}.load_state_dict: the state (is damaged|must be)"):
            made.door.load_state_dict(state)
        home[key] = before
    made.door.load_state_dict(state)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])
        elif not isinstance(value, tuple):
            yield value, key


def test_tensors_have_sums_of_their_own() -> None:
    made = Made("AutoLR").train(43)
    state = made.state()
    read = list(state["state"][0]["sums"])
    assert len(read) > 10
    for key in read:
        changed = {**state["tensors"], key: state["tensors"][key].clone()}
        changed[key].view(torch.uint8).reshape(-1)[0] ^= 1
        made.refuses({**state, "tensors": changed}, f"the state is damaged: the checksum of '{key}'")


@pytest.mark.parametrize(("i", "j", "size"), [(0, 1, 2), (2, 5, 9), (1, 1 << 20, (1 << 20) + 1)])
@pytest.mark.parametrize(("a", "b"), [(1.0, 2.0), (1.0, -1.0), (3.0, 3.0000000000000004)])
def test_two_words_that_changed_places_are_found(i: int, j: int, size: int, a: float, b: float) -> None:
    """Also where they differ in their sign alone, and in a tensor of more than 8 MB."""
    tensor = torch.zeros(size, dtype=torch.float64)
    tensor[i], tensor[j] = a, b
    before = checksum(tensor)
    tensor[i], tensor[j] = b, a
    assert checksum(tensor) != before


def test_states_of_0_3_0_are_read() -> None:
    """Other sums, of small tensors or of those of more than 8 MB, would call all of them damaged."""
    assert FORMAT == 5
    assert checksum(torch.ones(3)) == ["torch.float32", [3], "f08d0d4c7e2d11816a828c578009fb77"]
    assert checksum(torch.arange((1 << 20) + 3))[2] == "82411b3d151681c8a386d26add0a9aef"


def test_a_sum_is_of_the_values_however_they_lie() -> None:
    values = torch.randn(7, 3).to(torch.float16)
    assert (
        checksum(values) == checksum(values.t().contiguous().t()) == checksum(torch.cat([values, values])[7:])
    )


# ---------------------------------------------------------------------- what is honoured


@pytest.mark.parametrize(("then", "now"), [(400, 800), (400, 200), (400, 120)])
def test_another_end_counts(then: int, now: int) -> None:
    """A run comes down to zero at the end it is given now, whatever was planned."""
    first = Made("AutoLR", total_steps=then).train(100)
    second = Made("AutoLR", total_steps=now)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.door.load_state_dict(first.state())
    second.train(now - 100 - 1)
    last = second.door.get_last_lr()[0]
    assert last > 0
    second.train(1)
    assert second.door.finished
    assert second.door.get_last_lr() == [0.0]
    # Over a quarter of the run, or over what was left of it, from the factor that was found.
    length = min(now - 100, round(0.25 * now))
    assert last == pytest.approx(second.door._horizon.axes[0].factor / length, rel=1e-6)
    assert not second.door.searching


def test_an_end_that_is_past_is_refused() -> None:
    state = Made("AutoLR").train(150).state()
    for end in (120, 150):
        Made("AutoLR", total_steps=end).train(5).refuses(state, "total_steps must be above the 150")
    state = Made("Ensemble", total_steps=40).train(15).state()
    Made("Ensemble", total_steps=10).refuses(state, "total_steps must be at least the 15 steps taken so far")


def test_the_probes_seed_is_in_the_state() -> None:
    one, two = Made("AutoLR").train(15), Made("AutoLR").train(15)
    two.door._horizon._probe._seed = 7
    two.door.load_state_dict(one.state())
    assert two.door._horizon._probe._seed == one.door._horizon._probe._seed


def test_a_step_before_the_optimizer_was_loaded_is_no_step(caplog: pytest.LogCaptureFixture) -> None:
    """As torch.distributed.checkpoint takes one, to make room for the optimizer's state."""
    made = Made("AutoLR").train(15)
    saved = deepcopy(made.optimizer.state_dict())
    made.optimizer.step()
    made.optimizer.load_state_dict(saved)
    made.state()
    assert "called after optimizer.step()" not in caplog.text


def test_a_step_that_is_not_counted_yet_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = Made("AutoLR").train(15)
    made.state()
    assert "called after optimizer.step()" not in caplog.text
    made.optimizer.step()
    made.state()
    assert "called after optimizer.step() and before step(): the state is of step 15" in caplog.text
