"""One number of a JSON file, in the middle of a sentence.

``<!-- number: FILE PATH [OPERATION …] SPEC -->…<!-- end -->``

FILE is the name of docs/evidence/FILE.json, or of docs/figures/FILE.json. PATH leads from its top to a value,
by names with dots between them and by brackets:

- ``rows[0]``, or ``rows.0``: an entry of a list by its place, ``rows[-1]`` the last one;
- ``rows[workload=charlm,optimizer=AdamW]``: the one entry of which all of this is true;
- ``goals["worst excess at most 5 %"]``: a name that holds dots or spaces;
- ``rows[*].overhead``, ``rows[workload=charlm,*].overhead``: of every entry, or of every one of those.

An OPERATION is ``abs``, ``*1000``, ``/1e9``, ``+1`` or ``-1``; of several values ``min``, ``max``, ``mean``,
``median``, ``sum``, and of anything that has a length ``len``. SPEC is Python's: ``.1f``, ``+.2f`` (with its
sign), ``,.0f`` (thousands), ``.1%`` (a share, as per cent), ``.3g``, ``d``, ``s``, ``.10s`` (a date without
its time).
"""

from __future__ import annotations

import json
import math
import operator
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tools.quote.files import read

__all__ = ["number"]

_NAME = r"[^\s.\[\]]+"
_BRACKET = r'\[(?:"[^"]*"|[^"\]]*)\]'
_MARK = re.compile(rf"([\w-]+)\s+((?:{_NAME}|{_BRACKET})(?:\.{_NAME}|{_BRACKET})*)\s+(?:(.*\S)\s+)?(\S+)")
_STEP = re.compile(rf"({_BRACKET})|\.?({_NAME})")
_SPEC = re.compile(r"\+?,?(?:\.\d+)?[fgde%s]")
_OF_ONE: dict[str, Callable[[float, float], float]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "+": operator.add,
    "-": operator.sub,
}
_OF_MANY: dict[str, Callable[[Any], Any]] = {
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": math.fsum,
    "len": len,
}


def number(mark: str, evidence: Path) -> str:
    """What stands at the place of ``mark``, the part after ``number:``."""
    match = _MARK.fullmatch(mark)
    if match is None:
        raise ValueError("a mark is FILE PATH [OPERATION …] SPEC, e.g. excess overall.autolr.mean abs .1f")
    name, path, operations, spec = match.groups()
    value = _at(read(name, evidence), path)
    for operation in (operations or "").split():
        value = _operated(value, operation, path)
    return _formatted(value, spec, path)


# ---------------------------------------------------------------------- the way to a value


def _at(top: Any, path: str) -> Any:
    """The value, or with a star on the way the list of them."""
    values, gone, many = [top], "", False
    for step in _STEP.finditer(path):
        bracket, name = step.groups()
        if bracket and "*" in bracket[1:-1].split(","):
            many = True
            values = [entry for value in values for entry in _chosen(value, bracket, gone)]
        else:
            values = [_one(value, bracket, name, gone) for value in values]
        gone += step[0]
    return values if many else values[0]


def _one(value: Any, bracket: str | None, name: str | None, gone: str) -> Any:
    where = gone or "the top of the file"
    if bracket and "=" in bracket and not bracket.startswith('["'):
        found = _chosen(value, bracket, gone)
        if len(found) != 1:
            raise LookupError(
                f"{len(found)} entries of {where} are {bracket}, not one; they are told apart by "
                f"{_names(value)}"
            )
        return found[0]
    key = name if bracket is None else bracket[1:-1].strip('"')
    if isinstance(value, dict):
        if key not in value:
            raise LookupError(f"{where} has no {key!r}: it has {', '.join(map(repr, value))}")
        return value[key]
    if not isinstance(value, list):
        raise LookupError(f"{where} is {value!r}, which has no {key!r}")
    try:
        return value[int(str(key))]
    except (ValueError, IndexError):
        raise LookupError(f"{where} is a list of {len(value)}, which has no {key!r}") from None


def _chosen(value: Any, bracket: str, gone: str) -> list[Any]:
    """The entries of a list, or the values under all names, of which everything in the bracket is true."""
    entries = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(entries, list):
        raise LookupError(f"{gone or 'the top of the file'} is {value!r}, of which nothing can be chosen")
    wanted = [part.partition("=") for part in bracket[1:-1].split(",") if part != "*"]
    return [
        entry
        for entry in entries
        if all(isinstance(entry, dict) and _is(entry.get(key), text) for key, _, text in wanted)
    ]


def _is(value: Any, text: str) -> bool:
    if isinstance(value, bool) or value is None:
        return json.dumps(value) == text
    if isinstance(value, (int, float)):
        try:
            return value == float(text)
        except ValueError:
            return False
    return bool(value == text)


def _names(value: Any) -> str:
    entries = list(value.values()) if isinstance(value, dict) else value
    first = next((entry for entry in entries if isinstance(entry, dict)), {})
    return ", ".join(key for key, of in first.items() if not isinstance(of, (dict, list))) or "nothing"


# ---------------------------------------------------------------------- from a value to a word


def _operated(value: Any, operation: str, path: str) -> Any:
    if operation in _OF_MANY:
        if not isinstance(value, (list, dict)) or not (value or operation in ("len", "sum")):
            raise ValueError(f"{operation} is of several values, and {path} is {value!r}")
        return _OF_MANY[operation](value)
    _check(value, path)
    if operation == "abs":
        return abs(value)
    try:
        return _OF_ONE[operation[0]](value, float(operation[1:]))
    except (KeyError, ValueError):
        known = ", ".join(["abs", *(f"{sign}NUMBER" for sign in _OF_ONE), *_OF_MANY])
        raise ValueError(f"{operation!r} is none of {known}") from None


def _formatted(value: Any, spec: str, path: str) -> str:
    if not _SPEC.fullmatch(spec):
        raise ValueError(f"{spec!r} is no format such as .1f, +.2f, ',.0f', .1%, .3g, d or s")
    if spec.endswith("s"):
        if not isinstance(value, str):
            raise ValueError(f"{spec!r} is for words, and {path} is {value!r}")
        return format(value, spec)
    _check(value, path)
    text = format(int(value) if spec.endswith("d") and value == int(value) else value, spec)
    if not float(re.sub("[,%]", "", text)):
        text = text.lstrip("-+")  # what is rounded to nothing has no sign
    return text.replace("-", "−", 1).replace("%", " %") if "e" not in text else text


def _check(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = (
            " (a star gives several: say which of them, or min, max, mean)" if isinstance(value, list) else ""
        )
        why = "null, which stands for no finite number" if value is None else f"{value!r:.60}"
        raise ValueError(f"{path} is no number but {why}{hint}")
