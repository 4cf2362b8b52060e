"""What a recorded CUDA graph may point to stays where it is: weights, learning rates, what optimizers keep.

Where tensors lie can be held on any machine; that a graph stays right, only where there is CUDA.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet import Probe
from tests.fakes import Alike
from tests.unit.training import W, X, network, squared

STEPS = 90


def on_cuda(test: Any) -> Any:
    """torch warns of an empty graph, and of gradients that were made on another stream."""
    quiet = pytest.mark.filterwarnings("ignore:.*(CUDA Graph|stream).*:UserWarning")
    return quiet(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")(test))


def places(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Where everything lies; of what there is."""
    found = {f"weight {name}": p.data_ptr() for name, p in model.named_parameters()}
    found |= {f"lr {i}": group["lr"].data_ptr() for i, group in enumerate(optimizer.param_groups)}
    for i, state in enumerate(optimizer.state.values()):
        found |= {f"{name} {i}": v.data_ptr() for name, v in state.items() if isinstance(v, Tensor)}
    return found


def build(device: str = "cpu", **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = network().to(device)
    groups: Any = [
        {"params": layer.parameters(), "lr": torch.tensor(lr, device=device)}
        for layer, lr in ((model[0], 0.01), (model[2], 0.02))
    ]
    return model, torch.optim.AdamW(groups, **options)


def test_nothing_moves_to_other_memory() -> None:
    """Over a whole run with a way back, the probe's points, the descent, and what is handed over."""
    model, optimizer = build()
    probe = Probe(lambda x: squared(model, x), X[200:], model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=STEPS)
    began: dict[str, int] = {}
    actions = set()
    for i in range(STEPS):
        optimizer.zero_grad()
        squared(model, X[i]).backward()
        optimizer.step()
        began = began or places(model, optimizer)
        if i == 52:
            with torch.no_grad():
                model[-1].weight.mul_(1e6)
        record = auto.step()
        actions |= {one.action for one in record.horizon} if record else set()
        assert places(model, optimizer) == began, f"after step {i + 1}"
    assert "back" in actions
    auto.finish_()
    assert places(model, optimizer) == began


@pytest.mark.parametrize("door", ["one cycle", "ensemble"])
def test_a_fan_out_is_written_in_place(door: str) -> None:
    """Own values for a step, the mean at a sync, a controller's moves, a schedule's."""
    model, optimizer = build()
    auto: Any
    if door == "one cycle":
        auto = hdet.OneCycleAutoLR(
            optimizer,
            [0.01, 0.02],
            total_steps=STEPS,
            ensemble_lr_spread_ratio=0.2,
            model_sync_interval=10,
            auto_lr_warmup_steps=0,
            enable_auto_lr=True,
            cycle_momentum=False,
            model=model,
        )
    else:
        explore = [hdet.LearningRate(spread=0.2), hdet.WeightDecay(spread=0.2)]
        options: Any = {"sync_every": 10, "total_steps": STEPS, "process_group": Alike(), "model": model}
        auto = hdet.Ensemble(optimizer, explore, **options)
    began: dict[str, int] = {}
    for i in range(STEPS):
        optimizer.zero_grad()
        loss = squared(model, X[i])
        loss.backward()
        optimizer.step()
        began = began or places(model, optimizer)
        auto.step(loss.detach())
        assert places(model, optimizer) == began, f"after step {i + 1}"


@on_cuda
def test_a_recorded_pass_stays_right_on_cuda() -> None:
    """Forward and backward pass as a CUDA graph, the optimizer beside it: as without, way back included."""
    torch.testing.assert_close(trained_on_cuda(True), trained_on_cuda(False), rtol=1e-3, atol=1e-4)


def trained_on_cuda(recorded: bool) -> Tensor:
    model, optimizer = build("cuda", capturable=True)
    batches = X.cuda()
    weights, x = W.cuda(), batches[0].clone()

    def loss_on(x: Tensor) -> Tensor:
        return (model(x) - torch.tanh(x @ weights)).square().mean()

    def passed() -> Tensor:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
        loss = loss_on(x)
        loss.backward()
        return loss

    graph = torch.cuda.CUDAGraph()
    if recorded:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                passed()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            static = passed()
    auto = hdet.AutoLR(optimizer, probe=Probe(loss_on, batches[200:], model=model), total_steps=STEPS)
    actions = set()
    for i in range(STEPS):
        x.copy_(batches[i])
        if recorded:
            graph.replay()
        else:
            static = passed()
        optimizer.step()
        if i == 52:
            with torch.no_grad():
                model[-1].weight.mul_(1e6)
        record = auto.step(static)
        actions |= {one.action for one in record.horizon} if record else set()
    assert "back" in actions
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@on_cuda
def test_a_step_that_is_recorded_is_refused_on_cuda() -> None:
    """No hook would be called when it is replayed: nothing would be counted, and what is recorded of ours
    would be done at every step."""
    model, optimizer = build("cuda", capturable=True)
    probe = Probe(lambda x: model(x).square().mean(), X[200:].cuda(), model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=STEPS)
    for i in range(3):
        optimizer.zero_grad()
        model(X[i].cuda()).square().mean().backward()
        optimizer.step()
        auto.step()
    with pytest.raises(RuntimeError, match="must not be recorded"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


@on_cuda
def test_what_a_fused_optimizer_skips_is_not_waited_for_on_cuda() -> None:
    """Between syncs nothing is read; at the last one the count is of the steps that were taken."""
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
    options: Any = {"ensemble_lr_spread_ratio": 0.2, "model_sync_interval": 20, "model": model}
    auto = hdet.OneCycleAutoLR(optimizer, 0.05, total_steps=40, **options)
    batches, ends = X.cuda(), []
    for i in range(43):
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16):
            loss = model(batches[i]).square().mean()
        scaler.scale(loss * (float("inf") if i in (3, 17, 30) else 1.0)).backward()
        # The first step of a round looks at the weights, and a sync waits.
        torch.cuda.set_sync_debug_mode("error" if 1 < i < 19 or 23 < i < 41 else "default")
        try:
            scaler.step(optimizer)
            scaler.update()
            record = auto.step(loss.detach())
        finally:
            torch.cuda.set_sync_debug_mode("default")
        ends += [(i, record.step)] if record else []
    assert ends == [(21, 20), (42, 40)]
    assert {float(state["step"]) for state in optimizer.state.values()} == {40.0}
