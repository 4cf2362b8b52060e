"""The envelope of every state: who wrote it, in which format, for which run, and a checksum of all of it.

A door seals its state and opens another one's. What was damaged, is of another class, of a later format or of
another run is refused, before anything is taken. States of before there were envelopes have none; they are
known by their names, and their values are held against the same rules.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import hdet
from hdet.weights.sums import sums_of

__all__ = ["FORMAT", "damaged", "digest", "opened", "refuse_other_run", "sealed", "sound"]

#: Of what is written here. 1 was without an envelope.
FORMAT = 2
_KEY = "envelope"


def sealed(kind: str, configuration: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, and its envelope: in a tuple, which a distributed checkpoint takes for one thing."""
    envelope = {
        "class": kind,
        "format": FORMAT,
        "hdet": hdet.__version__,
        "configuration": dict(configuration),
    }
    return {**state, _KEY: ({**envelope, "digest": digest([envelope, state])},)}


def opened(
    kind: str, saved: object, *, needed: Collection[str], known: Collection[str] = ()
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The state and its configuration, None in a state of before. Raises ValueError for anything else.

    ``needed`` are the names that a state has, ``known`` those that it may have.
    """
    caller = f"{kind}.load_state_dict"
    if not isinstance(saved, Mapping):
        raise ValueError(f"{caller}: the state must be a dict that {kind}.state_dict() made, got {saved!r}")
    state = {name: value for name, value in saved.items() if name != _KEY}
    configuration = _unsealed(caller, kind, saved[_KEY], state) if _KEY in saved else None
    strange = sorted(str(name) for name in state if name not in needed and name not in known)
    missing = [name for name in needed if name not in state]
    if missing or (strange and configuration is None):
        had = ", ".join(map(str, state)) or "nothing"
        what = f"without {missing[0]!r}" if missing else f"with {strange[0]!r}"
        raise ValueError(
            f"{caller}: the state must be one that {kind}.state_dict() made, got one {what}, which holds "
            f"{had[:200]}; load what was saved of this very object"
        )
    return state, configuration


def _unsealed(caller: str, kind: str, envelope: Any, state: Mapping[str, Any]) -> dict[str, Any]:
    try:
        written, version, (said,) = envelope[0]["format"], envelope[0]["hdet"], envelope
        rest = {name: value for name, value in said.items() if name != "digest"}
        whole = len(envelope) == 1 and digest([rest, state]) == said["digest"]
        later = isinstance(written, int) and written > FORMAT
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        whole = later = False
    if later:
        raise ValueError(
            f"{caller}: the state must be of a format that this version knows, got one written by hdet "
            f"{version}, format {written}; this one, {hdet.__version__}, reads up to {FORMAT}: use the later "
            "version"
        )
    if not whole:
        raise damaged(caller)
    if said["class"] != kind:
        raise ValueError(
            f"{caller}: the state must be {kind}'s, got {said['class']}'s; load what was saved of this very "
            "object"
        )
    return dict(said["configuration"])


def damaged(caller: str) -> ValueError:
    """Not what was saved."""
    return ValueError(
        f"{caller}: the state is damaged: its checksum is not that of what it holds. Something in it was "
        "changed after state_dict(), in the file or by hand; go back to an earlier checkpoint"
    )


def refuse_other_run(
    caller: str, mine: Mapping[str, Any], saved: Mapping[str, Any] | None, free: Collection[str] = ()
) -> None:
    """A state is of a run that was set up as this one; ``free`` may be different."""
    for name, value in mine.items():
        if saved is None or name in free or name not in saved or digest(value) == digest(saved[name]):
            continue
        was, where = saved[name], name
        if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == len(was):
            pairs = zip(value, was, strict=True)
            first = next(i for i, (a, b) in enumerate(pairs) if digest(a) != digest(b))
            value, was, where = value[first], was[first], f"{name} (number {first})"
        raise ValueError(
            f"{caller}.load_state_dict: {where} must be as it was when the state was saved, {was}, got "
            f"{value}; set the run up as it was then, or begin a new one"
        )


def sound(caller: str, check: Callable[[], Any]) -> Any:
    """What a check of a state gives. One that fails because something is not there, or is of another kind,
    says what a user can do about it."""
    try:
        return check()
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{caller}.load_state_dict: the state must be one that hdet has saved, got one in which "
            f"something is missing or of another kind ({type(error).__name__}: {error}); load what was saved "
            "of this very object, or go back to an earlier checkpoint"
        ) from error


def digest(tree: Any) -> str:
    """Of plain values and tensors, whatever they lie in: lists are as tuples, and keys as their text, since
    JSON knows no other. What :func:`hdet.engine.state.make` gave has checksums of its own: a distributed
    checkpoint may take it from another rank, and cut its pieces otherwise."""
    hashed = hashlib.sha256()
    _feed(hashed.update, tree)
    return hashed.hexdigest()


def _feed(tell: Callable[[bytes], object], value: Any) -> None:
    if isinstance(value, Mapping):
        every = {str(key): one for key, one in value.items()}
        if every.keys() == {"values", "tensors"}:
            every = {"values": None}
        tell(b"{%d" % len(every))
        for key in sorted(every):
            _feed(tell, key)
            _feed(tell, every[key])
    elif isinstance(value, (list, tuple)):
        tell(b"[%d" % len(value))
        for one in value:
            _feed(tell, one)
    elif isinstance(value, Tensor):
        _feed(tell, sums_of({"": value})[""])
    else:
        text = _text(value).encode()
        tell(b"(%d" % len(text))
        tell(text)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, int):
        return f"int {int(value)}"
    if isinstance(value, float):
        return "float nan" if math.isnan(value) else f"float {float(value).hex()}"
    if isinstance(value, (str, torch.dtype, torch.device)):
        return f"text {value}"
    return type(value).__qualname__  # of what else torch's schedulers keep nobody knows how to read it
