"""A state in two halves: keys that stay, spare room that nobody reads, and what is missing said."""

from __future__ import annotations

import io
from typing import Any

import torch

from hdet.weights.parcel import Own, Parcel, Piece, pieces_of

WEIGHT = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))


def state(kept: torch.Tensor | None) -> dict[str, Any]:
    room = torch.zeros_like(WEIGHT).detach()
    best = pieces_of({0: room if kept is None else kept}, [WEIGHT], spare=kept is None)
    return {"best": best, "rows": [(1, None), {"seen": torch.ones(2)}], "steps": 7}


def test_keys_do_not_tell_how_far_a_run_has_come() -> None:
    fresh, later = Parcel.of(state(None)), Parcel.of(state(torch.ones(2, 3)))
    assert list(fresh.tensors) == list(later.tensors) == ["best/0"]
    assert fresh.opened()[0]["best"] == {}
    assert torch.equal(later.opened()[0]["best"][0], torch.ones(2, 3))


def test_a_file_gives_back_what_was_put_in() -> None:
    parcel, file = Parcel.of(state(torch.ones(2, 3))), io.BytesIO()
    torch.save([parcel.values, parcel.tensors], file)
    file.seek(0)
    opened, missing, dropped = Parcel(*torch.load(file, weights_only=True)).opened()
    assert opened["rows"][0] == (1, None)
    assert torch.equal(opened["rows"][1]["seen"], torch.ones(2))
    assert (opened["steps"], missing, dropped) == (7, [], [])


def test_what_a_template_did_not_ask_for_is_missing() -> None:
    parcel = Parcel.of(
        {"state": {"exp_avg": Piece(WEIGHT, WEIGHT)}, "first": Piece(WEIGHT, WEIGHT, may_miss=True)}
    )
    opened, missing, dropped = Parcel(parcel.values, {}).opened()
    assert opened == {"state": {}}
    assert (missing, dropped) == (["state/exp_avg"], ["first"])


def test_pieces_are_the_tensors_themselves() -> None:
    kept = torch.zeros(2, 3)
    parcel = Parcel.of(state(kept))
    parcel.tensors["best/0"].fill_(3.0)
    assert kept.tolist() == [[3.0] * 3] * 2


def test_what_nobody_can_cut_binds_a_state_to_its_rank() -> None:
    assert not Parcel.of(state(None)).bound
    assert Parcel.of({"codes": Own(torch.ones(5))}).bound
