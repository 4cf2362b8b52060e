"""A problem of LightBench without its runner, which searches for hyperparameters, and on a GPU alone.

Every problem is a module with a ``main`` that builds model, data, loss and win condition and hands them to
``trial``. That last call is caught here. What the package needs for its search (optuna, heavyball's
optimizers) need not be installed: stand-ins take their place while it is imported.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, get_origin

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["GROUP", "Problem", "as_it_was", "load", "on_device", "taken"]

#: After so many steps LightBench asks whether a problem is solved.
GROUP = 256
_DTYPE = "float32"
# What the package seeds all generators with: before a problem is made, and before every trial.
_SEED, _TRIAL_SEED = 0, 0x12312
_STAND_INS = ("heavyball", "heavyball.utils", "heavyball.chainable", "heavyball.helpers", "optuna")


@dataclass(frozen=True)
class Problem:
    """What a problem hands to its runner."""

    model: nn.Module
    #: The next input and target; None where the model draws its own.
    data: Callable[[], tuple[Any, Any]]
    loss_fn: Callable[[Any, Any], Tensor] | None
    #: Of the model and a loss: whether it is solved.
    win_condition: Callable[[nn.Module, float], tuple[bool, Any]]
    steps: int
    group: int = GROUP

    def loss(self) -> Tensor:
        """The loss of a new batch at the weights as they are."""
        given, target = self.data()
        made = self.model() if given is None else self.model(given)
        loss: Tensor = made if self.loss_fn is None else self.loss_fn(made, target)
        # One problem hands out a tensor with one element.
        return loss.reshape(())

    def solved(self, losses: Sequence[float]) -> bool:
        """Whether it is, by the model as it is now and the losses since it was asked last.

        The lowest loss stands for all: conditions are either upper bounds of a loss or about weights alone.
        """
        won, _ = self.win_condition(self.model, min(losses, default=float("nan")))
        return bool(won)


def load(name: str, steps: int, device: str) -> Problem:
    """The problem ``kind-difficulty``, built as the package's runner would with one seed and float32.

    Call it, and use what it returns, within :func:`on_device`.
    """
    kind, _, difficulty = name.rpartition("-")
    with _stand_ins():
        try:
            module = import_module(f"lightbench.{kind}")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{name} needs lightbench: pip install --no-deps lightbench==0.1.1 ({error})"
            ) from error
    _seed(_SEED)
    problem = taken(module, device, steps=steps, config=difficulty)
    _seed(_TRIAL_SEED)
    return problem


def taken(module: Any, device: str, **arguments: Any) -> Problem:
    """What the ``main`` of a module would run ``trial`` with."""
    caught: list[Problem] = []

    def trial(
        model: nn.Module,
        data: Callable[[], tuple[Any, Any]] | None,
        loss_fn: Callable[[Any, Any], Tensor] | None,
        win_condition: Callable[[nn.Module, float], tuple[bool, Any]],
        steps: int,
        *_: Any,
        dtype: Any = None,
        group: int = GROUP,
        **__: Any,
    ) -> None:
        model.to(device=device, dtype=_dtype(dtype))
        for part in model.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()
        caught.append(Problem(model, data or (lambda: (None, None)), loss_fn, win_condition, steps, group))

    module.trial = trial
    known = inspect.signature(module.main).parameters
    given = {"dtype": _DTYPE, "opt": "AdamW", "weight_decay": 0, "trials": 1, "win_condition_multiplier": 1.0}
    given |= arguments
    for listed in ("dtype", "opt"):
        # Some take one name, some a list; the package's runner hands a list to all.
        if listed in known and get_origin(known[listed].annotation) is list:
            given[listed] = [given[listed]]
    module.main(**{name: value for name, value in given.items() if name in known})
    (problem,) = caught
    return problem


def _dtype(value: Any) -> torch.dtype | None:
    value = value[0] if isinstance(value, list) else value
    made: torch.dtype | None = getattr(torch, value) if isinstance(value, str) else value
    return made


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    if find_spec("numpy"):
        import_module("numpy").random.seed(seed)


# ---------------------------------------------------------------------- what a model remembers


@contextmanager
def as_it_was(model: nn.Module, number: int) -> Iterator[None]:
    """Within, what a model remembers beside weights and buffers is a copy; after, it is what it was before.

    A generator among it is seeded by ``number``, so that a number stands for the same data wherever it is
    asked for.
    """
    kept = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if not name.startswith("_") and name != "training"
    ]
    for module, name, value in kept:
        setattr(module, name, _copied(value, number))
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)


def _copied(value: Any, number: int) -> Any:
    if isinstance(value, random.Random):
        return random.Random(number)
    if isinstance(value, deque):
        return deque(value, value.maxlen)  # of losses that have been computed: those are not changed
    if isinstance(value, list):
        return [_copied(item, number) for item in value]
    return value.detach().clone() if isinstance(value, Tensor) else copy.copy(value)


# ---------------------------------------------------------------------- what the package takes for granted


def on_device(device: str) -> AbstractContextManager[object]:
    """Within, tensors that are asked for on a GPU are made on ``device``."""
    return nullcontext() if torch.device(device).type == "cuda" else _Elsewhere(device)


class _Elsewhere(TorchFunctionMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0].to(self._device)
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = self._device
        return func(*args, **kwargs)


class _Nothing:
    """Whatever is asked of a stand-in: callable, without effect."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


class _StandIn(ModuleType):
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Modules that LightBench imports and that no problem needs."""
    plotting = () if find_spec("matplotlib") else ("matplotlib", "matplotlib.colors")
    made: dict[str, ModuleType] = {name: _StandIn(name) for name in (*_STAND_INS, *plotting)}
    for name, module in made.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(made[parent], child, module)
    if plotting:
        made["matplotlib.colors"].TABLEAU_COLORS = {}  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, real in before.items():
            if real is None:
                sys.modules.pop(name)
            else:
                sys.modules[name] = real
