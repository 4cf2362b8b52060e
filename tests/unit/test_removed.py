"""A name that moved, and a call that goes wrong, say what to write."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import hdet
from hdet import removed
from hdet.removed import explains_calls


class Door:
    @explains_calls
    def __init__(self, optimizer: int, *, stayed: int = 0) -> None:
        self.value = optimizer + stayed

    @explains_calls
    def step(self, loss: float = 0.0) -> float:
        return loss


@pytest.mark.parametrize(("name", "module"), removed.MOVED.items())
def test_a_moved_name_says_where_it_is(name: str, module: str) -> None:
    assert name not in hdet.__all__
    assert hasattr(import_module(module), name)
    message = rf"^hdet\.{name} moved in 0\.3\.0: from {module} import {name}$"
    with pytest.raises(AttributeError, match=message):
        getattr(hdet, name)
    with pytest.raises(ImportError, match=message):
        exec(f"from hdet import {name}")


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((1, 100), {}, "too many positional arguments"),
        ((), {"stayed": 1}, "missing a required .*'optimizer'"),
        ((1,), {"max_lr": 1}, "unexpected keyword argument 'max_lr'"),
    ],
)
def test_a_wrong_call_shows_the_right_one(args: Any, kwargs: Any, words: str) -> None:
    with pytest.raises(TypeError, match=rf"^Door.*{words}; write Door\(optimizer\), and by name .*: stayed$"):
        Door(*args, **kwargs)


def test_an_unknown_argument_names_the_closest() -> None:
    with pytest.raises(
        TypeError, match=r"^Door\(\) got an unexpected keyword argument 'stay'\. Did you mean"
    ):
        Door(1, stay=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'qqq'; write Door"):
        Door(1, qqq=2)  # type: ignore[call-arg]


def test_what_stays_is_as_before() -> None:
    assert Door(1, stayed=2).value == 3
    assert list(inspect.signature(Door).parameters) == ["optimizer", "stayed"]


def test_an_attribute_that_was_renamed_says_so() -> None:
    class Has:
        old = removed.Renamed("0.3.0", "new")

    with pytest.raises(AttributeError, match=r"^Has\.old was renamed in 0\.3\.0: use \.new$"):
        Has().old  # noqa: B018
    assert not hasattr(Has(), "old")
