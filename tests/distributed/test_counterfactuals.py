"""The arms of ``hdet bench fan-out`` on real ranks: what they know of one run, and what they make of it."""

from __future__ import annotations

import statistics
from itertools import islice
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hdet.auto_lr import AutoLR
from hdet.bench.fan_out.counterfactual import CounterfactualController, CounterfactualLR
from hdet.bench.fan_out.noise import NotedController
from hdet.bench.fan_out.plan import OWN, PROBES, Run
from hdet.bench.fan_out.runs import probed
from hdet.bench.workloads import WORKLOADS
from hdet.policies.incumbent import Incumbent
from hdet.probes import Probe
from hdet.replicas.launch import LocalProcesses

STEPS = 150
#: A few windows of many runs tell more of a variance than many of one, which all have the same batches.
SHORT, SEEDS = 90, 24


def search(
    rank: int, size: int, arm: str, spread: float, hold: bool = False, seed: int = 0, steps: int = STEPS
) -> dict[str, Any]:
    """Train the noisy quadratic. With ``hold`` no window is significant, and every rank trains on the whole
    batch, which is what a shared gradient comes to: so all train the same run, and nothing waits."""
    workload = WORKLOADS["quadratic"]()
    model = workload.build(seed)
    wrapped: nn.Module = DistributedDataParallel(model) if arm == PROBES and not hold else model
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0, momentum=0.9)
    run = Run("quadratic", "sgd", arm, size, spread, seed)
    probe = Probe(lambda batch: workload.loss(model, batch), probed(rank, run, workload), model=model)
    given: dict[str, Any] = {"ranks": size, "significance": 1e9 if hold else 1.0}
    auto: AutoLR | CounterfactualLR
    if arm == PROBES:
        controller: NotedController = NotedController(**given)
        auto = AutoLR(optimizer, probe=probe, total_steps=steps, controller=controller, patience=None)
    else:
        controller = CounterfactualController(**given)
        auto = CounterfactualLR(
            optimizer,
            probe=probe,
            total_steps=steps,
            spread=spread,
            controller=controller,
            seed=seed,
        )
    records = []
    for (samples,) in islice(workload.batches(seed), steps):
        optimizer.zero_grad()
        part = samples if hold else samples.chunk(size)[rank]
        workload.loss(wrapped, (part,)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (record := auto.step()) is not None:
            records.append(record)
    end = workload.evaluate(model)
    handed = auto.finish_()
    return {
        "end": end,
        "handed": handed,
        "weights": torch.cat([p.detach() for p in model.parameters()]),
        "errors": [noted.progress_error for noted in controller.noted],
        "rates": [record.hyperparameters[0].base_after for record in records],
        "apart": [max(record.distance_measured) for record in records],
        "judged": [record.step for record in records if record.horizon[0].loss_end > 0],
        "events": [(record.step, event) for record in records for event in record.events],
        "slopes": auto.slopes if isinstance(auto, CounterfactualLR) else [],
    }


def errors(rank: int, size: int) -> list[list[float]]:
    """Of many runs: the error of each window's progress."""
    runs = (search(rank, size, PROBES, 0.0, hold=True, seed=seed, steps=SHORT) for seed in range(SEEDS))
    return [run["errors"] for run in runs]


def test_probing_in_parallel_the_variance_falls_like_one_over_n(ranks: LocalProcesses) -> None:
    """The same runs twice, but for what needs no significance: what differs is how many have looked."""
    found = {n: ranks.run(errors, n, size=n, timeout=100) for n in (1, 4)}
    variance = {}
    for n, results in found.items():
        assert all(other == results[0] for other in results), "all know the same"
        # One run knows its error from four batches alone; the mean over runs of its square is better known.
        # A run that went back has judged fewer windows.
        variance[n] = [
            statistics.fmean(error**2 for error in window) for window in zip(*results[0], strict=False)
        ]
    ratios = [alone / together for alone, together in zip(variance[1], variance[4], strict=False)]
    assert statistics.geometric_mean(ratios) == pytest.approx(4, rel=0.4)


@pytest.mark.parametrize("size", [2, 4])
def test_replicas_that_train_by_themselves_end_as_one_and_agree(ranks: LocalProcesses, size: int) -> None:
    first, *others = ranks.run(search, size, OWN, 0.3, size=size, timeout=60)
    for other in others:
        assert other["rates"] == first["rates"]
        assert other["slopes"] == first["slopes"]
        assert other["handed"] == first["handed"]
        assert torch.equal(other["weights"], first["weights"])
    assert min(first["apart"]) > 0, "they were apart at the end of every window"
    assert len(first["slopes"]) >= 5
    assert first["end"] < 1.0, "6.3 at the start"
    # It starts far too low, and there higher rates do better: beyond doubt, where there are enough to tell.
    assert any(slope < (-1 if size == 2 else -3) * error for _, slope, error in first["slopes"])


def test_without_a_spread_nothing_is_compared_and_on_a_quadratic_it_is_the_shared_run(
    ranks: LocalProcesses,
) -> None:
    """SGD is linear there: the mean of those who train by themselves is who trains on the mean gradient."""
    own = ranks.run(search, 2, OWN, 0.0, size=2, timeout=60)[0]
    shared = ranks.run(search, 2, PROBES, 0.0, size=2, timeout=60)[0]
    assert own["slopes"] == []
    assert own["rates"] == pytest.approx(shared["rates"], rel=1e-3)
    assert torch.allclose(own["weights"], shared["weights"], atol=1e-3)


def begun_anew(rank: int, size: int) -> dict[str, Any]:
    """A search that is sent back to the beginning at the end of its sixth judged window."""
    behind = iter([False] * 5 + [True] + [False] * 100)
    with (
        mock.patch.object(Incumbent, "leads_back", property(lambda _: next(behind))),
        mock.patch.object(Incumbent, "may_begin_anew", return_value=True),
    ):
        return search(rank, size, OWN, 0.3)


def test_a_search_that_begins_anew_does_so_on_all_replicas_and_without_the_slopes_before(
    ranks: LocalProcesses,
) -> None:
    first, second = ranks.run(begun_anew, 2, size=2, timeout=60)
    assert second["rates"] == first["rates"]
    assert torch.equal(second["weights"], first["weights"])
    ((step, event),) = first["events"]
    assert "from the beginning" in event
    # Two replicas have no error within a window: a slope has one only beside another of the same search.
    told, judged = [at for at, _, _ in first["slopes"]], first["judged"]
    assert min(told) == judged[1]
    assert min(at for at in told if at > step) == [at for at in judged if at > step][1]
