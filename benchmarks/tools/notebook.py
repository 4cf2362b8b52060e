"""Runs the notebook of the examples, so that it needs no Jupyter to be tested or written again.

``python -m benchmarks.tools.notebook examples/report.ipynb`` runs its cells in order and writes what they
print and show into it. A page of a report is left out of the file, for its size; its
text stays, and who runs the cell sees the page.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["execute", "main"]

#: A longer text/html is not written into the file.
_LONGEST = 100_000


def execute(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The outputs of every code cell, in one namespace, as Jupyter has them: what is printed, then what the
    last expression is."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [_run("".join(cell["source"]), names, number) for number, cell in enumerate(cells, 1)]


def _run(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        shown = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = value._repr_html_().splitlines(keepends=True)
        outputs.append(
            {"output_type": "execute_result", "execution_count": number, "data": shown, "metadata": {}}
        )
    return outputs


def main(path: Path) -> None:
    """Run the notebook and write it with its outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(cells, execute(cells), strict=True), 1):
        for output in outputs:
            if sum(map(len, output.get("data", {}).get("text/html", []))) > _LONGEST:
                del output["data"]["text/html"]
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
