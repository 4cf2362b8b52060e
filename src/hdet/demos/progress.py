"""How far a demo is: a bar in a terminal, and elsewhere a plain line for each part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

__all__ = ["Progress"]

_Item = TypeVar("_Item")


class Progress:
    """Parts of a whole, one after the other.

    Args:
        console: where it is shown.
        total: steps of all parts together.
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, title: str) -> None:
        """The next part."""
        self._bar.update(self._task, description=title)
        if not self._console.is_terminal:
            self._console.print(title, markup=False, highlight=False, soft_wrap=True)

    def advance(self, steps: int = 1) -> None:
        """So many steps more are done."""
        self._bar.advance(self._task, steps)

    def over(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """The same items, each a step."""
        for item in items:
            yield item
            self.advance()
