"""Public names and arguments that moved or were removed: using one raises, and the error says what to use."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["ARGUMENTS", "MOVED", "NAMES", "Renamed", "refuse_name", "refuse_removed"]

F = TypeVar("F", bound=Callable[..., Any])

_NO_OUTER = "use the plain mean, Ensemble(gradients='none'): the outer step's defaults ended above it"
_METHOD = "use method='autolr', 'autotune', 'published' or a callable"
_NO_WIRE = "leave it out, weights travel in float32; where a link is slow, raise sync_every"

#: Names of the package ``hdet``: the version that removed them, and what to do instead.
NAMES: dict[str, tuple[str, str]] = {
    "FaultTolerantReplicas": (
        "0.3.0",
        "start torchrun with --max-restarts and go on from hdet.load(); a run goes on with another number of "
        "processes (docs/replicas.md)",
    ),
    "Outer": ("0.3.0", _NO_OUTER),
    "OuterLR": ("0.3.0", _NO_OUTER),
    "OuterMomentum": ("0.3.0", _NO_OUTER),
    "flat": ("0.3.0", "save a state with hdet.save, torch.save or torch.distributed.checkpoint"),
}

#: Names that were in ``hdet`` until 0.3.0, and the module to import each from.
MOVED = {
    "Event": "hdet.loop.announce",
    "Found": "hdet.autolr.find",
    "HorizonController": "hdet.autolr.rule",
    "HorizonRecord": "hdet.history",
    "HyperparameterRecord": "hdet.history",
    "Loaded": "hdet.saving",
    "RegressionController": "hdet.tuning.regression",
    "SoftmaxController": "hdet.published.softmax",
    "SyncRecord": "hdet.history",
    "read_history": "hdet.history",
}

#: Keyword arguments by the function that took them: "AutoLR" for its constructor, "AutoLR.step" for a method.
ARGUMENTS: dict[str, dict[str, tuple[str, str]]] = {
    "Arms": {
        "average_every": (
            "0.3.0",
            "leave it out to share gradients inside an arm, or train every rank by itself with "
            "Ensemble(gradients='none', sync_every=...)",
        )
    },
    "AutoLR": {
        "controller": ("0.3.0", "use rule="),
        "sync_every": ("0.3.0", "windows grow with the run; leave it out"),
        "scope": ("0.3.0", "leave it out; each of several optimizers has its own factor"),
        "spread": ("0.3.0", "leave it out; hdet.Ensemble compares replicas with different learning rates"),
        "snapshot": ("0.3.0", "use offload=False for copies on the device, or leave it out"),
        "keep": ("0.3.0", "use offload=False for copies on the device, or leave it out"),
        "seed": ("0.3.0", "nothing is drawn; leave it out"),
    },
    "AutoTune": {
        "controller": ("0.3.0", "use rule="),
        "sync_every": ("0.3.0", "windows grow with the run; leave it out"),
        "snapshot": ("0.3.0", "use offload=False for copies on the device, or leave it out"),
        "keep": ("0.3.0", "use offload=False for copies on the device, or leave it out"),
        "replicas": ("0.3.0", "give them as process_group="),
    },
    "BestMean": {
        "keep": ("0.3.0", "use offload=False for a copy on the device, or leave it out"),
        "windows": ("0.3.0", "windows grow with the run; leave it out"),
    },
    "Ensemble": {
        "outer": ("0.3.0", _NO_OUTER),
        "wire": ("0.3.0", _NO_WIRE),
        "replicas": ("0.3.0", "give them as process_group="),
    },
    "HDETCallback": {"build": ("0.3.0", _METHOD)},
    "HDETTrainerMixin": {"hdet": ("0.3.0", _METHOD)},
    "Guard": {"snapshot": ("0.3.0", "use offload=False for a copy on the device, or leave it out")},
    "OneCycleAutoLR": {
        "wire": ("0.3.0", _NO_WIRE),
        "controller": ("0.3.0", "use hdet.AutoLR(optimizer, probe=probe, schedule=OneCycleLR(...))"),
        "probe": ("0.3.0", "use hdet.AutoLR(optimizer, probe=probe, schedule=OneCycleLR(...))"),
    },
    "prepare": {
        "door": ("0.3.0", "give the optimizer, and a door of your own as method=lambda optimizer: door"),
    },
    "Search.state_dict": {"compact": ("0.3.0", "leave it out; a state holds all that a run goes on from")},
}


def refuse_name(name: str) -> None:
    """Raise for a name that moved or was removed; for ``hdet.__getattr__``.

    ``from hdet import name`` discards the message of an AttributeError, so there it is an ImportError.
    """
    if name in MOVED:
        message = f"hdet.{name} moved in 0.3.0: from {MOVED[name]} import {name}"
    elif name in NAMES:
        version, instead = NAMES[name]
        message = f"hdet.{name} was removed in {version}: {instead}"
    else:
        return
    importing = sys._getframe(2).f_code.co_name == "_handle_fromlist"
    raise (ImportError if importing else AttributeError)(message)


class Renamed:
    """An attribute that has another name now: reading it raises, with the new one."""

    def __init__(self, version: str, new: str) -> None:
        self._version, self._new = version, new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, _: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__}.{self._old} was renamed in {self._version}: use .{self._new}")


def refuse_removed(function: F) -> F:
    """Decorate a public function or ``__init__``: a removed keyword raises TypeError with what to do instead,
    and so does a call with others than its arguments, with how to call it. The signature stays as it is."""
    caller = function.__qualname__.removesuffix(".__init__")
    signature = inspect.signature(function)
    parameters = signature.parameters
    known = list(parameters)
    passes_on = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name in ARGUMENTS.get(caller, {}):
                version, instead = ARGUMENTS[caller][name]
                raise TypeError(f"{caller}: {name}= was removed in {version}: {instead}")
            if name not in known and not passes_on:
                closest = difflib.get_close_matches(name, known)
                hint = f". Did you mean {closest[0]!r}?" if closest else f"; {_call_of(caller, signature)}"
                raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{hint}")
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{caller}: {error}; {_call_of(caller, signature)}") from None
        return function(*args, **kwargs)

    return cast(F, checked)


def _call_of(caller: str, signature: inspect.Signature) -> str:
    """How to call it: what it must be given, and what it may be given by name.

    >>> def Door(self, optimizer, *, probe, total_steps=None): ...
    >>> _call_of("Door", inspect.signature(Door))
    'write Door(optimizer, probe=probe), and by name what else it takes: total_steps'
    """
    every = [each for each in signature.parameters.values() if each.name != "self"]
    must = [each for each in every if each.default is each.empty and each.kind is not each.VAR_KEYWORD]
    shown = [f"{each.name}={each.name}" if each.kind is each.KEYWORD_ONLY else each.name for each in must]
    may = [each.name for each in every if each not in must and each.kind is not each.VAR_KEYWORD]
    others = f", and by name what else it takes: {', '.join(may)}" if may else ""
    return f"write {caller}({', '.join(shown)}){others}"
