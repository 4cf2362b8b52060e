"""Which weights Muon gets, and that one rate drives all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.regret.optimizers import build, hidden_matrices, rate
from benchmarks.regret.plan import DEFAULT_RATES, OPTIMIZERS, STARTS
from benchmarks.workloads.charlm import GPT

needs_muon = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch 2.9 brought Muon")


def names(model: nn.Module, some: list[torch.Tensor]) -> set[str]:
    return {name for name, weight in model.named_parameters() if any(weight is one for one in some)}


def test_hidden_matrices_of_a_transformer() -> None:
    model = GPT(characters=7, layers=1, width=8, heads=2, context=4)
    layers = ("query_key_value", "attended", "mlp.0", "mlp.2")
    assert names(model, hidden_matrices(model)) == {f"blocks.0.{layer}.weight" for layer in layers}


@needs_muon
def test_muon_and_adamw_share_all_weights_and_one_rate() -> None:
    model = GPT(characters=7, layers=1, width=8, heads=2, context=4)
    muon, adamw = build("muon", model, 0.02)
    assert isinstance(muon, torch.optim.Muon)
    assert muon.param_groups[0]["adjust_lr_fn"] == "match_rms_adamw"
    shares = [weight for one in (muon, adamw) for group in one.param_groups for weight in group["params"]]
    assert len(shares) == len({id(weight) for weight in shares}) == len(list(model.parameters()))
    assert {group["lr"] for one in (muon, adamw) for group in one.param_groups} == {0.02}
    adamw.param_groups[0]["lr"] = 0.5
    assert rate([muon, adamw], "lr") == 0.5
    with pytest.raises(ValueError, match="a linear layer before the last one"):
        build("muon", nn.Linear(2, 2), 0.1)


def test_every_optimizer_has_a_default_rate_and_a_sweep() -> None:
    assert set(DEFAULT_RATES) == set(STARTS) == set(OPTIMIZERS)
    with pytest.raises(ValueError, match="must be adamw, sgd, lion or muon, got 'adam'"):
        build("adam", nn.Linear(2, 2), 0.1)
