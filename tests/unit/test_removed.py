"""What was removed raises, and the error names the replacement."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

import hdet
from hdet import removed
from hdet.autolr import search
from hdet.removed import refuse_removed


@pytest.fixture(autouse=True)
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(removed.NAMES, "Gone", ("0.3.0", "use Stayed"))
    monkeypatch.setitem(removed.ARGUMENTS, "Door", {"gone": ("0.3.0", "use stayed=")})
    monkeypatch.setitem(removed.ARGUMENTS, "passes_on", {"gone": ("0.3.0", "use stayed=")})
    monkeypatch.setitem(removed.ARGUMENTS, "Door.step", {"gone": ("0.3.0", "leave it out")})


class Door:
    @refuse_removed
    def __init__(self, optimizer: int, *, stayed: int = 0) -> None:
        self.value = optimizer + stayed

    @refuse_removed
    def step(self, loss: float = 0.0) -> float:
        return loss


def test_a_removed_name() -> None:
    with pytest.raises(AttributeError, match=r"^hdet\.Gone was removed in 0\.3\.0: use Stayed$"):
        hdet.Gone  # noqa: B018
    assert not hasattr(hdet, "Gone")
    with pytest.raises(ImportError, match=r"^hdet\.Gone was removed in 0\.3\.0: use Stayed$"):
        from hdet import Gone  # noqa: F401


@pytest.mark.parametrize("name", list(removed.NAMES))
def test_a_removed_name_is_not_public(name: str) -> None:
    assert name not in hdet.__all__
    assert not hasattr(hdet, name)


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


def test_a_removed_argument() -> None:
    with pytest.raises(TypeError, match=r"^Door: gone= was removed in 0\.3\.0: use stayed=$"):
        Door(1, gone=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^Door\.step: gone= was removed in 0\.3\.0: leave it out$"):
        Door(1).step(gone=2)  # type: ignore[call-arg]


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


def passes_on(**more: int) -> dict[str, int]:
    return more


def test_one_that_passes_arguments_on_refuses_the_removed_ones_alone() -> None:
    checked = refuse_removed(passes_on)
    assert checked(anything=1) == {"anything": 1}
    with pytest.raises(TypeError, match=r"^passes_on: gone= was removed in 0\.3\.0: use stayed=$"):
        checked(gone=2)


#: In files of frameworks, whose own tests refuse them.
ELSEWHERE = {"HDETCallback", "HDETTrainerMixin", "prepare"}


@pytest.mark.parametrize("caller", [name for name in removed.ARGUMENTS if name not in ELSEWHERE])
def test_a_removed_argument_is_refused_where_it_was_taken(caller: str) -> None:
    name, _, method = caller.partition(".")
    function = getattr(search if name == "Search" else hdet, name)
    function = getattr(function, method) if method else function
    for argument, (version, _) in removed.ARGUMENTS[caller].items():
        assert argument not in inspect.signature(function).parameters
        with pytest.raises(TypeError, match=rf"{argument}= was removed in {version}"):
            function(**{argument: None})


def test_an_attribute_that_was_renamed_says_so() -> None:
    class Has:
        old = removed.Renamed("0.3.0", "new")

    with pytest.raises(AttributeError, match=r"^Has\.old was renamed in 0\.3\.0: use \.new$"):
        Has().old  # noqa: B018
    assert not hasattr(Has(), "old")
