"""Problems taken out of LightBench: those made up here look like its own; its own where it is installed."""

from __future__ import annotations

import random
from collections import deque
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, List  # noqa: UP035

import pytest
import torch
from torch import Tensor, nn

from benchmarks.lightbench.problems import Problem, as_it_was, load, on_device, taken
from benchmarks.lightbench.published import ADAMW_TRIALS


class Remembering(nn.Module):
    """A loss that depends on a step counter, a queue, a buffer and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(1))
        self.step = 0
        self.queues: list[deque[float]] = [deque([0.0], maxlen=2)]
        self.rng = random.Random(7)

    def forward(self) -> Tensor:
        self.step += 1
        self.queues[0].append(self.rng.random())
        return self.param.square().mean() * self.step + self.queues[0][-1]


def module_like(dtype_of: Any) -> Any:
    """A module whose main hands a problem to ``trial``, which asks for a GPU as LightBench's do."""
    given: dict[str, Any] = {}

    def main(dtype: Any, opt: Any, steps: int = 10, config: str = "") -> None:
        given.update(dtype=dtype, opt=opt, config=config)
        model = nn.Linear(2, 1).cuda().double()
        target = torch.full((), 0.5, device="cuda")

        def data() -> tuple[Tensor, Tensor]:
            return torch.randn(4, 2, device="cuda"), torch.zeros(4, 1, device="cuda")

        def win(model: nn.Module, loss: float) -> tuple[bool, dict[str, Any]]:
            return bool(loss <= target), {}

        module.trial(model, data, nn.functional.mse_loss, win, 2 * steps, opt, 0.0, trials=3, dtype=dtype)

    main.__annotations__ |= {"dtype": dtype_of, "opt": List[str]}  # noqa: UP006
    module = SimpleNamespace(main=main, given=given)
    return module


@pytest.mark.parametrize(("kind", "expected"), [(str, "float32"), (List[str], ["float32"])])  # noqa: UP006
def test_what_a_problem_hands_to_its_runner_is_caught_without_a_gpu(kind: Any, expected: Any) -> None:
    module = module_like(kind)
    with on_device("cpu"):
        problem = taken(module, "cpu", steps=50, config="hard")
        loss = problem.loss()
    assert module.given == {"dtype": expected, "opt": ["AdamW"], "config": "hard"}
    assert problem.steps == 100, "as the problem has it, not as it was given"
    assert {weight.dtype for weight in problem.model.parameters()} == {torch.float32}
    assert loss.shape == ()
    assert problem.solved([3.0, 0.4, 2.0])
    assert not problem.solved([3.0, 0.6])
    assert not problem.solved([])


def test_the_probe_leaves_nothing_behind_in_what_a_model_remembers() -> None:
    model = Remembering()
    first = model()
    queue, state = model.queues[0], model.rng.getstate()
    with as_it_was(model, 3):
        there, further = model(), model()
    with as_it_was(model, 3):
        again = model()
    with as_it_was(model, 4):
        other = model()
    assert torch.equal(there, again), "a number stands for the same data"
    assert not torch.equal(there, other)
    assert not torch.equal(there, further)
    assert model.step == 1
    assert model.queues[0] is queue
    assert list(queue) == pytest.approx([0.0, float(first.detach()) - 1])
    assert model.rng.getstate() == state
    with pytest.raises(ZeroDivisionError), as_it_was(model, 3):
        model.step = 1 // 0
    assert model.step == 1


@pytest.mark.skipif(find_spec("lightbench") is None, reason="lightbench is not installed")
@pytest.mark.filterwarnings("ignore")
def test_problems_of_the_package_can_be_had() -> None:
    for name in [name for name in ADAMW_TRIALS if name.endswith("trivial") and "_rnn" not in name]:
        with on_device("cpu"):
            problem = load(name, 100, "cpu")
            assert isinstance(problem, Problem)
            loss = problem.loss()
            loss.backward()
            assert torch.isfinite(loss)
            assert not problem.solved([1e9])
