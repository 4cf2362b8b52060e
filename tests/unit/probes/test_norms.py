"""Running statistics of given batches alone; nothing else of the model is left changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.probes.isolation import refresh_norms_, trained_norms

BATCHES = list(torch.randn(5, 8, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1)


def moments(inputs: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The mean of the batches' means and that of their unbiased variances."""
    return torch.stack([x.mean(0) for x in inputs]).mean(0), torch.stack([x.var(0) for x in inputs]).mean(0)


def assert_statistics(norm: nn.Module, inputs: list[Tensor]) -> None:
    mean, variance = moments(inputs)
    torch.testing.assert_close(norm.get_buffer("running_mean"), mean)
    torch.testing.assert_close(norm.get_buffer("running_var"), variance)


@pytest.mark.parametrize(("kind", "momentum"), [(nn.BatchNorm1d, 0.1), (nn.SyncBatchNorm, None)])
def test_statistics_are_those_of_the_batches_alone(
    kind: Callable[..., nn.Module], momentum: float | None
) -> None:
    norm = kind(4, momentum=momentum)
    norm(torch.randn(8, 4) * 100)
    refresh_norms_(norm, norm, BATCHES, trained_norms(norm))
    assert_statistics(norm, BATCHES)
    assert norm.momentum == momentum


def test_each_row_has_the_statistics_of_its_own_batches_and_the_model_none() -> None:
    norm = nn.BatchNorm1d(4)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    replicas = hdet.StackedReplicas(norm, optimizer, 2, gradients="none")

    def run(batch: Tensor) -> Tensor:
        return replicas.losses(lambda model, x: model(x).sum(), batch)

    run(BATCHES[0] * 100)
    refresh_norms_(norm, run, BATCHES, trained_norms(norm), replicas)
    assert norm.momentum == 0.1
    assert norm.num_batches_tracked == 0, "the model's own are not the replicas'"
    for r, half in enumerate((slice(0, 4), slice(4, 8))):
        replicas.write_(r)
        assert_statistics(norm, [x[half] for x in BATCHES])
        assert norm.num_batches_tracked == len(BATCHES)


def test_a_norm_behind_another_sees_what_the_first_makes_of_each_batch() -> None:
    first, second = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    model = nn.Sequential(first, nn.ReLU(), second)
    refresh_norms_(model, model, BATCHES, trained_norms(model))
    assert_statistics(first, BATCHES)
    assert_statistics(
        second,
        [torch.relu((x - x.mean(0)) / (x.var(0, unbiased=False) + first.eps).sqrt()) for x in BATCHES],
    )


def test_a_frozen_norm_is_left_alone() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4, track_running_stats=False))
    model(torch.randn(8, 4))
    model[1].eval()
    before = [buffer.clone() for buffer in model[1].buffers()]
    assert trained_norms(model) == [model[0]]
    refresh_norms_(model, model, BATCHES, trained_norms(model))
    for buffer, old in zip(model[1].buffers(), before, strict=True):
        assert torch.equal(buffer, old)
    assert_statistics(model[0], BATCHES)


def test_a_model_without_norms_is_not_run() -> None:
    for model in (nn.Linear(4, 1), nn.BatchNorm1d(4).eval()):
        refresh_norms_(model, pytest.fail, BATCHES, trained_norms(model))


def test_dropout_is_off_meanwhile() -> None:
    model = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4))
    refresh_norms_(model, model, BATCHES, trained_norms(model))
    assert_statistics(model[1], BATCHES)


def test_flags_and_momentum_are_as_before() -> None:
    """Also after a loss that raises."""
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=0.3), nn.BatchNorm1d(4, momentum=None), nn.Dropout()
    )
    model[0].eval()
    model[2].eval()
    flags = [module.training for module in model.modules()]
    addresses = [buffer.data_ptr() for buffer in model.buffers()]

    def run(batch: Tensor) -> None:
        model(batch)
        raise KeyError("the user's")

    with pytest.raises(KeyError, match="the user's"):
        refresh_norms_(model, run, BATCHES, trained_norms(model))
    assert [module.training for module in model.modules()] == flags
    assert (model[1].momentum, model[2].momentum) == (0.3, None)
    assert [buffer.data_ptr() for buffer in model.buffers()] == addresses


def test_no_gradient_is_recorded() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    recorded: list[bool] = []
    refresh_norms_(model, lambda x: recorded.append(model(x).requires_grad), BATCHES, trained_norms(model))
    assert recorded == [False] * 5
    assert torch.is_grad_enabled()
