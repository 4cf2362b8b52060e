"""Fine-tuning: narrow matrices that change nothing at first, and weights that are made once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from benchmarks.workloads import data_file, tuned


def test_low_rank_begins_as_the_layer_it_stands_for() -> None:
    layer = nn.Linear(16, 24).requires_grad_(False)
    both = tuned.LowRank(layer)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(both(x), layer(x))
    assert {name for name, weight in both.named_parameters() if weight.requires_grad} == {
        "down.weight",
        "up.weight",
    }


def test_lora_begins_where_tuning_begins_and_leaves_the_body_alone() -> None:
    try:
        data_file("subjectivity.tsv")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    lora, whole = tuned.make_lora(), tuned.make()
    model = lora.build(0)
    assert lora.evaluate(model) == pytest.approx(whole.evaluate(whole.build(0)), rel=1e-5)
    frozen = {name: weight.clone() for name, weight in model.named_parameters() if not weight.requires_grad}
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert all(".down." in name or ".up." in name for name in trained)
    assert len(trained) == 2 * 4 * len(model.blocks)  # type: ignore[arg-type]
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = kind(model.parameters(), lr=0.1, fused=True)
        lora.loss(model, next(lora.batches(0))).backward()
        optimizer.step()
    now = dict(model.named_parameters())
    assert all(torch.equal(weight, now[name]) for name, weight in frozen.items())
