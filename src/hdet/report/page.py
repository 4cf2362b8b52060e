"""One page that needs nothing else: plotly's script, ours, the style and the histories in one file.

The page's own script draws everything, whether a history was embedded, dropped onto it or is followed live.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any

from hdet.report.alerts import summary
from hdet.report.records import HistoryFile

__all__ = ["Report", "open_histories", "pieces"]

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("words", "records", "alerts", "verdict", "charts", "search_charts", "replica_charts"),
    *("page", "main"),
)
#: What is embedded, of all histories together; plotly's script is about five million bytes more.
_MOST_BYTES = 2_000_000
_MOST_LINES = 1000


class Report:
    """Histories as one page. As the last line of a notebook's cell it is drawn there; the notebook needs no
    network, and grows by plotly's script, five megabytes.

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
            raise ValueError("Report: give one history or more, got none")
        paths = [Path(run) for run in runs]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"Report: a run must be a history file, got {str(path)!r}")
        self.height = height
        self._files = [file.read() for file in open_histories(paths)]

    @property
    def verdicts(self) -> dict[str, str]:
        """How each run went, in a sentence."""
        return {found["run"]: found["verdict"] for found in self.summaries()}

    def summaries(self) -> list[dict[str, Any]]:
        """Of each run its name, its verdict and its alerts."""
        return [summary(file.name, file.records()) for file in self._files]

    def write(self, path: str | PathLike[str]) -> None:
        """The page as a file that opens without a network."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with Path(path).open("w", encoding="utf-8") as out:
            out.writelines(self._pieces())

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {verdict}" for name, verdict in self.verdicts.items())

    def _repr_html_(self) -> str:
        """What notebooks show: a frame, which separates the page's style and scripts from theirs."""
        return (
            f'<iframe srcdoc="{html.escape("".join(self._pieces()))}" width="100%" height="{self.height}" '
            'style="border: 0" title="hdet report"></iframe>'
        )

    def _pieces(self) -> Iterator[str]:
        runs = [{**file.about(), "lines": file.lines()} for file in self._files]
        return pieces({"live": False, "runs": runs})


def open_histories(paths: Sequence[Path]) -> list[HistoryFile]:
    """Files that share what a page may hold."""
    each = max(1, len(paths))
    limit, bytes_ = max(50, 2 * _MOST_LINES // (each + 1)), _MOST_BYTES // (2 * each)
    return [HistoryFile(path, limit=limit, bytes_=bytes_) for path in paths]


def pieces(data: dict[str, Any]) -> Iterator[str]:
    """The page's text in parts, so that a server need not hold it."""
    for i, part in enumerate(re.split(r"/\*(css|data|plotly|page)\*/", _asset("page.html"))):
        if not i % 2:
            yield part
        elif part == "css":
            yield _asset("page.css")
        elif part == "data":
            # JSON that cannot end the script element it is in, whatever a history holds.
            text = json.dumps(data)
            yield text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
        elif part == "plotly":
            yield from _plotly()
        else:
            yield "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _plotly() -> Iterator[str]:
    """Plotly's script, from its package, which is not imported."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the report needs plotly: pip install 'hdet[cli]'")
    with (Path(spec.origin).parent / "package_data" / "plotly.min.js").open(encoding="utf-8") as file:
        while piece := file.read(1 << 16):
            yield piece
