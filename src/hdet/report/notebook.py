"""The page of ``hdet report`` as an object: a notebook shows it where it stands, a script writes it."""

from __future__ import annotations

import html
from os import PathLike
from pathlib import Path

from hdet.report.page import pieces, runs_of, sources, write
from hdet.report.terminal import summary

__all__ = ["Report"]


class Report:
    """Histories as one page. As the last line of a notebook's cell it is drawn there, live charts and all;
    the notebook needs no network, and grows by plotly's script, five megabytes.

    Args:
        runs: histories (``AutoLR(…, history="run.jsonl")``). They are read when the report is made.
        height: of the page in a notebook, in pixels.

    >>> import tempfile
    >>> empty = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> empty.touch()
    >>> list(Report(empty).verdicts.values())
    ['Nothing has been measured yet.']
    """

    def __init__(self, *runs: str | PathLike[str], height: int = 800) -> None:
        if not runs:
            raise ValueError("Report: runs must be one history or more, got none")
        paths = [Path(run) for run in runs]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(
                    f"Report: a run must be a history file, got {str(path)!r}, which is none; give the path "
                    "that history= had"
                )
        self.height = height
        self._sources = sources(paths)
        for source in self._sources:
            source.read()

    @property
    def verdicts(self) -> dict[str, str]:
        """What each run came to, in a sentence."""
        return {source.name: summary(source.name, source.records())["verdict"] for source in self._sources}

    def write(self, path: str | PathLike[str]) -> None:
        """The page as a file that opens without a network."""
        write(self._sources, Path(path))

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {verdict}" for name, verdict in self.verdicts.items())

    def _repr_html_(self) -> str:
        """What notebooks ask for. A frame of its own keeps its style and scripts from theirs."""
        page = "".join(pieces({"live": False, "runs": runs_of(self._sources)}))
        return (
            f'<iframe srcdoc="{html.escape(page)}" width="100%" height="{self.height}" '
            'style="border: 0" title="hdet report"></iframe>'
        )
