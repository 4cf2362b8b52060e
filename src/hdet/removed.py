"""Public names that moved, and calls that go wrong: the error says what to write."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

__all__ = ["MOVED", "Renamed", "explains_calls", "refuse_name"]

F = TypeVar("F", bound=Callable[..., Any])

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


def refuse_name(name: str) -> None:
    """Raise for a name that moved; for ``hdet.__getattr__``.

    ``from hdet import name`` discards the message of an AttributeError, so there it is an ImportError.
    """
    if name in MOVED:
        importing = sys._getframe(2).f_code.co_name == "_handle_fromlist"
        message = f"hdet.{name} moved in 0.3.0: from {MOVED[name]} import {name}"
        raise (ImportError if importing else AttributeError)(message)


class Renamed:
    """An attribute that has another name now: reading it raises, with the new one."""

    def __init__(self, version: str, new: str) -> None:
        self._version, self._new = version, new

    def __set_name__(self, owner: type, name: str) -> None:
        self._old = name

    def __get__(self, _: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__}.{self._old} was renamed in {self._version}: use .{self._new}")


def explains_calls(function: F) -> F:
    """Decorate a public function or ``__init__``: a call with others than its arguments raises TypeError with
    how to call it. The signature stays as it is."""
    caller = function.__qualname__.removesuffix(".__init__")
    signature = inspect.signature(function)
    parameters = signature.parameters
    known = list(parameters)
    passes_on = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
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
