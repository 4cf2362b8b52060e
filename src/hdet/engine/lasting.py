"""What the ranks agreed on when the run began, and what they have decided alike since, still holds on all.

One rank may resume from another state, run other code, or write a learning rate by itself; from then on it
would decide, and train, differently, and nothing else would tell. A digest of it all travels with every roll;
only where digests differ are the words exchanged, which name who has what.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import pkgutil
from collections.abc import Sequence
from types import ModuleType

import hdet
from hdet.engine.fan_out import FanOut
from hdet.policies.base import Policy
from hdet.replicas import Replicas

__all__ = ["Lasting", "code_facts"]

#: The rooms whose constants decide; what a user imports beside them is no part of the run.
_ROOMS = ("best", "controllers", "engine", "hyperparameters", "policies", "probes", "schedules", "weights")


class Lasting:
    """What all ranks must believe at every sync.

    Args:
        caller: begins the errors.
        replicas: who compares.
        fan_out: the hyperparameters.
        policies: the rest of what is decided.
    """

    def __init__(self, caller: str, replicas: Replicas, fan_out: FanOut, policies: Sequence[Policy]) -> None:
        self._caller = caller
        self._replicas = replicas
        self._fan_out = fan_out
        self._policies = policies

    def digest(self) -> float:
        """Of all that must be the same, exact as a float."""
        constants = [vars(module)[key] for _, module, key in _constants()]
        text = repr((self.facts(), hdet.__version__, constants)).encode()
        return float(int.from_bytes(hashlib.sha256(text).digest()[:6], "big"))

    def object(self) -> None:
        """Digests differ: raise on every rank, saying who has what. A collective."""
        try:
            self._replicas.agree(f"{self._caller}.step", {**self.facts(), **code_facts()})
        except RuntimeError as error:
            raise RuntimeError(
                f"{error}. Load the same checkpoint everywhere, saved within at_base(), install the same "
                "hdet, and write a value on all ranks or none"
            ) from None

    def facts(self) -> dict[str, str]:
        """By name. Numbers to nine digits: two machines may differ in the last bit of an exponential."""
        elastic = self._replicas.elastic  # one that joins has the others' state, and a schedule of its own
        axes = [axis for axis in self._fan_out.axes if axis.may_part or not elastic]
        facts = {f"the base of {axis.name}": _number(axis.base) for axis in axes}
        if elastic:
            return facts
        facts |= {f"the spread of {axis.name}": _number(axis.spread) for axis in axes}
        facts |= {f"the factor of {axis.name}": _number(axis.factor) for axis in self._fan_out.learning_rates}
        facts |= {f"the end of window {i}": str(policy.window_end) for i, policy in enumerate(self._policies)}
        return {**facts, "the seed": str(self._fan_out.seed)}


def code_facts() -> dict[str, str]:
    """hdet's version, and every number that stands under a constant's name in the code that decides."""
    return {"hdet's version": hdet.__version__, **{name: repr(vars(m)[key]) for name, m, key in _constants()}}


@functools.cache
def _constants() -> list[tuple[str, ModuleType, str]]:
    """Full name, module and name in it. All of a room, loaded or not: ranks may have used different ones."""
    rooms = [importlib.import_module(f"hdet.{room}") for room in _ROOMS]
    names = [f"{room.__name__}.{info.name}" for room in rooms for info in pkgutil.iter_modules(room.__path__)]
    modules = [importlib.import_module(name) for name in sorted(names)]
    return [
        (f"{module.__name__}.{key}", module, key)
        for module in modules
        for key, value in vars(module).items()
        if key.isupper() and not key.startswith("__") and isinstance(value, (int, float, str, tuple))
    ]


def _number(value: float) -> str:
    return f"{float(value):.9g}"
