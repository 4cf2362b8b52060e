"""What AutoLR costs around a large model: the parts of the measurement, on a tiny one."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from benchmarks.speed import large

pytestmark = pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")


@pytest.fixture(scope="module")
def result() -> dict:
    return large.run(quick=True)


def test_a_run_is_measured_whole(result: dict) -> None:
    assert result["steps"] == 60
    assert result["windows"] > 2
    *parts, once = result["where"].values()
    assert sum(parts) == pytest.approx(result["overhead"], abs=1e-3), "where the time goes, and no more"
    assert 0 <= once <= 1
    assert all(value is None for value in result["memory_in_weights"].values()), "no GPU, no count"
    assert [one["bucket_memory"] >> 20 for one in result["packing"]] == [48, 384]
    with_host, longer = result["others"]
    assert (with_host["steps"], longer["steps"]) == (60, 80)
    assert [one["offload"] for one in (result, with_host, longer)] == [None, True, None]
    assert "packing" not in with_host | longer
    assert set(result["goals"]) == {"more wall-clock than plain training", "packing, of the device's copies"}


def test_moments_are_wide_and_the_step_is_adamws() -> None:
    torch.manual_seed(0)
    mine, theirs = (torch.nn.Parameter(torch.ones(5)) for _ in range(2))
    ours = large._WideMoments([mine], lr=0.1)
    torchs = torch.optim.AdamW([theirs], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1, eps=1e-8)
    for _ in range(5):
        mine.grad = torch.randn(5)
        theirs.grad = mine.grad.clone()
        ours.step()
        torchs.step()
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    narrow = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    narrow.grad = torch.ones_like(narrow)
    ours = large._WideMoments([narrow], lr=0.1)
    ours.step()
    assert ours.state[narrow]["m"].dtype == torch.float32


def test_what_is_measured_is_told(result: dict) -> None:
    told = {**result, "memory_in_weights": {"at_rest": 1.0, "at_a_window": 1.5, "in_state_dict": 2.0}}
    screen = io.StringIO()
    Console(file=screen, width=140).print(large.table(told))
    assert "1.50 × the weights" in screen.getvalue()
    assert ", 80 steps of" in screen.getvalue()
    assert "copies with the host" in screen.getvalue()
