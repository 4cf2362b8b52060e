"""A state goes through files of tensors and text, and comes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from hdet.engine.envelope import digest
from hdet.flat import flatten, unflatten
from tests.unit.engine.test_envelope import Made, equal, resumed


@pytest.mark.parametrize("kind", ["AutoLR", "OneCycleAutoLR", "Ensemble", "BestMean", "Guard"])
def test_there_and_back(kind: str) -> None:
    made = Made(kind).train(43)
    tensors, text = flatten(made.door.state_dict())
    assert all(type(tensor) is torch.Tensor and tensor.is_contiguous() for tensor in tensors.values())
    assert len({tensor.data_ptr() for tensor in tensors.values() if tensor.numel()}) == len(
        [tensor for tensor in tensors.values() if tensor.numel()]
    )
    json.loads(text)
    again = Made(kind).train(3)
    again.door.load_state_dict(unflatten(tensors, text))
    assert equal(again.state(), made.state())


def test_through_safetensors(tmp_path: Path) -> None:
    safe = pytest.importorskip("safetensors.torch")
    made = Made("AutoLR").train(43)
    tensors, text = flatten(made.door.state_dict())
    safe.save_file(tensors, tmp_path / "state", metadata={"hdet": text})
    with pytest.importorskip("safetensors").safe_open(tmp_path / "state", framework="pt") as file:
        read, said = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()["hdet"]  # noqa: SIM118
    again = resumed(made, unflatten(read, said))
    for run in (made, again):
        torch.manual_seed(3)
        run.train(60)
    assert digest(again.model.state_dict()) == digest(made.model.state_dict())


def test_what_has_no_place_there_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a/0 must be a plain tensor, got Parameter"):
        flatten({"a": [torch.nn.Parameter(torch.ones(1))]})
