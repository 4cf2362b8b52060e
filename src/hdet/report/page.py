"""One page that stands alone: plotly's script, ours, the style and the histories in one file.

All drawing happens in the page's own script, so that a history that was embedded, dropped or is followed live
goes the same way. Here it is only put together, and what a history holds is embedded so that it stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hdet.report.source import Source

__all__ = ["BUDGET_BYTES", "pieces", "runs_of", "sources", "write"]

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = (
    *("words", "records", "alerts", "verdict", "charts", "search_charts", "replica_charts"),
    *("page", "source"),
)
#: Of all that is embedded; plotly's script is about five million more.
BUDGET_BYTES = 2_000_000
_MOST_LINES = 1000


def sources(paths: Sequence[Path]) -> list[Source]:
    """Files that share what a page may hold."""
    each = max(1, len(paths))
    limit, bytes_ = max(50, 2 * _MOST_LINES // (each + 1)), BUDGET_BYTES // (2 * each)
    return [Source(path, limit=limit, bytes_=bytes_) for path in paths]


def write(found: Sequence[Source], path: Path) -> None:
    """The page of runs that have been read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(pieces({"live": False, "runs": runs_of(found)}))


def runs_of(found: Sequence[Source]) -> list[dict[str, Any]]:
    """Runs that have been read, as the page takes them."""
    return [{**source.about(), "lines": source.lines()} for source in found]


def pieces(data: dict[str, Any]) -> Iterator[str]:
    """The page's text in parts, so that a server need not hold it."""
    parts = re.split(r"/\*(css|data|plotly|page)\*/", _asset("page.html"))
    for i, part in enumerate(parts):
        if not i % 2:
            yield part
        elif part == "css":
            yield _asset("page.css")
        elif part == "data":
            yield _embedded(data)
        elif part == "plotly":
            yield from _plotly()
        else:
            yield "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, whatever a history holds."""
    text = json.dumps(data, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _plotly() -> Iterator[str]:
    """Plotly's own script, as its package has it."""
    from importlib.util import find_spec

    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the report needs plotly: pip install 'hdet[cli]'")
    script = Path(spec.origin).parent / "package_data" / "plotly.min.js"
    with script.open(encoding="utf-8") as file:
        while piece := file.read(1 << 16):
            yield piece
