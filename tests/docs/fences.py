"""Runs the Python of our pages as a reader would: a section at a time, after a training script of theirs.

A section begins at ``## …``; its fences that are marked alike are one script, which begins with the names of
``reader.py``. Words after ``python`` say where it runs: ``needs=transformers`` where that package is,
``ranks=2`` on so many processes, ``warns`` where the package is to object; ``sketch`` is compiled alone.
What needs a framework also has the names of ``frameworks.py``.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import re
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests import ROOT
from tests.docs.frameworks import READERS

READER = Path(__file__).with_name("reader.py")
#: What a page may take for granted of it.
NAMES = {
    "torch",
    "nn",
    "hdet",
    "model",
    "optimizer",
    "criterion",
    "loader",
    "held_out",
    "loss_of",
    "S",
    "epochs",
}
#: What has no Python to run: notes by date.
LEFT_OUT = ("docs/log.md", "docs/_build/")
PACKAGES = {
    "transformers",
    "accelerate",
    "lightning",
    "peft",
    "ray",
    "wandb",
    "mlflow",
    "tensorboard",
    "trackio",
}
#: What a fence may be besides Python, and besides a directive of the site's.
OTHERS = {"console", "diff", "json", "text", "toml", "yaml"}

_FENCE = re.compile(r"(?P<indent>[ \t>]*)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)")


@dataclass(frozen=True, slots=True)
class Fence:
    """One block of Python, and the line of the page on which it begins."""

    page: Path
    line: int
    section: str
    code: str
    needs: tuple[str, ...] = ()
    ranks: int = 1
    sketch: bool = False
    warns: bool = False

    def compiled(self) -> Any:
        """Its code, whose tracebacks name the page's lines."""
        return compile("\n" * self.line + self.code, self.page, "exec")


@dataclass(frozen=True, slots=True)
class Script:
    """The fences of a section that are marked alike, in their order."""

    fences: tuple[Fence, ...]

    def __str__(self) -> str:
        first = self.fences[0]
        return f"{first.page.name}:{first.line}"

    @property
    def needs(self) -> tuple[str, ...]:
        return self.fences[0].needs

    @property
    def ranks(self) -> int:
        return self.fences[0].ranks

    def run(self) -> dict[str, Any]:
        """What the names mean at the end. Raises what a fence raises, and AssertionError where it warns."""
        names: dict[str, Any] = {"__name__": "__main__"}
        with _of_its_own("ignore" if self.needs else "error"):  # frameworks warn of themselves
            exec(compile(READER.read_text(encoding="utf-8"), READER, "exec"), names)
            for name in set(names) - {"__name__", "__builtins__"} - NAMES:
                del names[name]
            for package in set(self.needs) & set(READERS):
                names |= READERS[package](names)
            try:
                for fence in self.fences:
                    with _objections() as said:
                        exec(fence.compiled(), names)
                    place = f"{fence.page.name}, line {fence.line}"
                    assert fence.warns or not said, f"{place}: the package objects: {'; '.join(said)}"
                    assert said or not fence.warns, f"{place}: the package is to object, and does not"
            finally:
                for value in list(names.values()):
                    if type(value).__module__.startswith("hdet.") and hasattr(value, "detach"):
                        value.detach()
        return names


def pages() -> list[Path]:
    """Every page whose Python is run."""
    found = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if not page.relative_to(ROOT).as_posix().startswith(LEFT_OUT)]


def scripts(page: Path) -> list[Script]:
    """What is to be run of a page: fences of one section, packages and number of ranks together."""
    alike: dict[tuple[str, tuple[str, ...], int], list[Fence]] = {}
    for fence in fences(page):
        if not fence.sketch:
            alike.setdefault((fence.section, fence.needs, fence.ranks), []).append(fence)
    return [Script(tuple(one)) for one in alike.values()]


def run_on(rank: int, page: Path, number: int) -> None:
    """One rank's part of the page's script of that number."""
    scripts(page)[number].run()


def fences(page: Path) -> list[Fence]:
    """The page's Python, in its order. Raises ValueError for a fence that nobody would know how to run."""
    found: list[Fence] = []
    section, opened = "", None
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        match = _FENCE.fullmatch(line.rstrip())
        if opened is None:
            if line.startswith("## "):
                section = f"{number} {line[3:]}"
            opened = (number, match) if match else None
            continue
        begun, first = opened
        if match and match["ticks"].startswith(first["ticks"]) and not match["info"]:
            code = textwrap.dedent("\n".join(lines[begun : number - 1])) + "\n"
            found += _understood(page, begun, section, first, code)
            opened = None
    if opened is not None:
        raise ValueError(f"{page.name}, line {opened[0]}: a fence must be closed, and this one is not")
    return found


def _understood(page: Path, line: int, section: str, first: re.Match[str], code: str) -> list[Fence]:
    kind, *words = first["info"].split() or [""]
    place = f"{page.name}, line {line}"
    if kind != "python":
        if kind in OTHERS or (kind.startswith("{") and "code" not in kind):
            if kind == "console" and not re.search(r"^\$ ", code, re.MULTILINE):
                raise ValueError(f"{place}: a command must follow a prompt, '$ ', and there is none")
            return []
        raise ValueError(f"{place}: a fence must be python, {', '.join(sorted(OTHERS))}, got {kind!r}")
    if ">" in first["indent"]:
        raise ValueError(f"{place}: Python in a quotation is not run; put it outside")
    return [Fence(page, line, section, code, **_marks(place, words))]


def _marks(place: str, words: list[str]) -> dict[str, Any]:
    marks: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name == "needs" and value and not set(value.split(",")) - PACKAGES:
            marks["needs"] = tuple(sorted(value.split(",")))
        elif name == "ranks" and value in ("2", "3", "4"):
            marks["ranks"] = int(value)
        elif word in ("sketch", "warns"):
            marks[word] = True
        else:
            raise ValueError(
                f"{place}: a word after python must be needs=PACKAGE (of {', '.join(sorted(PACKAGES))}), "
                f"ranks=2…4, warns or sketch, got {word!r}"
            )
    return marks


# ---------------------------------------------------------------------- its surroundings


@contextlib.contextmanager
def _of_its_own(warning: Literal["error", "ignore"]) -> Iterator[None]:
    """A folder, a random state and a silence of its own."""
    here, before = Path.cwd(), dict(os.environ)
    random.seed(0)
    with (
        tempfile.TemporaryDirectory() as folder,
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        warnings.simplefilter(warning)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)


@contextlib.contextmanager
def _objections() -> Iterator[list[str]]:
    """What the package logs as a warning or worse."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("hdet")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
