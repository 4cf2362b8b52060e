"""Does the short test suite notice a wrong line? Forty of them, drawn by the commit's hash.

``make mutate`` changes one line of the package at a time: a comparison, an operator, a constant, or a
statement that is left out. Docstrings, messages, imports and annotations are no candidates. A mutant meets
the doctests and unit tests of its room first, and the whole of ``make test`` only if it survives those.
Nobody chooses the lines, and nobody can tune to them: the next commit draws others.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from benchmarks.machine import about
from benchmarks.show import as_json

__all__ = ["Mutant", "draw", "main", "mutants_of"]

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src") / "hdet"
RESULT = ROOT / "docs" / "mutation.json"
#: Frameworks and pages, which the short suite cannot import or look at; the rest of `make test-all` does.
LEFT_OUT = ("integrations", "report/assets")
COUNT, LIMIT_S = 40, 900

_COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


@dataclass(frozen=True)
class Mutant:
    """One line of one file, as it is and as it is tried."""

    file: str
    line: int
    before: str
    after: str


def mutants_of(path: Path, root: Path = ROOT) -> list[Mutant]:
    """Every change of a file that stays within one line of code."""
    text = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    found = []
    for node in _candidates(tree):
        if node.lineno != node.end_lineno:
            continue
        line = lines[node.lineno - 1]
        for new in _changes(node):
            # Columns of the syntax tree count bytes.
            raw = line.encode()
            changed = (raw[: node.col_offset] + new.encode() + raw[node.end_col_offset :]).decode()
            try:
                ast.parse("\n".join([*lines[: node.lineno - 1], changed, *lines[node.lineno :]]))
            except SyntaxError:
                continue
            found.append(
                Mutant(path.relative_to(root).as_posix(), node.lineno, line.strip(), changed.strip())
            )
    return found


def _candidates(tree: ast.AST) -> Iterator[Any]:
    """Expressions and statements that run: no annotation, no message of an error or of the log."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "bases", "decorator_list") or isinstance(tree, ast.Raise):
            continue
        if isinstance(tree, ast.keyword) and tree.arg == "strict":  # zip's, which only asserts
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
                continue
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                continue
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("logger.", "TypeVar")):
                continue
            if isinstance(node, (ast.expr, ast.stmt)):
                yield node
            yield from _candidates(node)


def _changes(node: Any) -> Iterator[str]:
    new = copy.deepcopy(node)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS:
        new.ops[0] = _COMPARISONS[type(node.ops[0])]()
        yield f"({ast.unparse(new)})"
    elif isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in _OPERATORS:
        new.op = _OPERATORS[type(node.op)]()
        yield f"({ast.unparse(new)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield repr(node.value + 1) if isinstance(node.value, int) else repr(node.value * 2 + 1)
    elif isinstance(node, (ast.AugAssign, ast.Continue, ast.Break)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "pass"


def draw(files: list[Path], commit: str, count: int, root: Path = ROOT) -> list[Mutant]:
    """So many of the lines that could be changed, each with one of its changes, by the commit's hash."""
    by_line: dict[tuple[str, int], list[Mutant]] = {}
    for file in files:
        for mutant in mutants_of(file, root):
            by_line.setdefault((mutant.file, mutant.line), []).append(mutant)

    def dice(*what: object) -> int:
        return int(hashlib.sha256(repr((commit, *what)).encode()).hexdigest(), 16)

    drawn = sorted(by_line, key=lambda line: dice(*line))[:count]
    return [by_line[line][dice(*line, "which") % len(by_line[line])] for line in drawn]


def short_suite() -> list[str]:
    """What ``make test`` gives to pytest."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ntest: ")[1].split("\n\n")[0]
    return shlex.split(recipe.split("-m pytest ")[1])


def room_tests(mutant: Mutant, root: Path) -> list[str]:
    """The tests of its room: those of its file first, which mostly know at once."""
    inside = Path(mutant.file).relative_to(PACKAGE)
    room = inside.parts[0] if len(inside.parts) > 1 else ""
    folder = Path("tests") / "unit" / room
    tests = [file.relative_to(root).as_posix() for file in sorted((root / folder).rglob("test_*.py"))]
    if not room:
        tests = [test for test in tests if Path(test).parent == folder]
    own = [test for test in tests if Path(test).stem == f"test_{inside.stem}"]
    return [mutant.file, *own, *(test for test in tests if test not in own)]


def attempt(mutant: Mutant, tree: Path) -> dict[str, Any]:
    """Change the line in a copy of the checkout, run the tests, and put it back."""
    path = tree / mutant.file
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    lines[mutant.line - 1] = lines[mutant.line - 1].replace(mutant.before, mutant.after)
    path.write_text("".join(lines), encoding="utf-8")
    began = time.monotonic()
    try:
        caught, suite = _first_failure(room_tests(mutant, tree), tree), "its room"
        if caught is None:
            caught, suite = _first_failure(short_suite(), tree), "the whole"
    finally:
        path.write_text(text, encoding="utf-8")
    seconds = round(time.monotonic() - began)
    return {**asdict(mutant), "caught_by": caught, "suite": suite, "seconds": seconds}


def _first_failure(tests: list[str], tree: Path) -> str | None:
    """The test that fails, or None."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "-rfE", *tests]
    try:
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_S} s"
    if done.returncode in (0, 5):
        return None
    told = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return told.group(1) if told else f"pytest ended with {done.returncode}"


def main() -> None:
    """Draw, try, and write docs/mutation.json after every mutant, so that it can be stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="whose code; the one in the file continues it")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    commit = _git("rev-parse", given.commit).decode().strip()
    with tempfile.TemporaryDirectory() as folder:
        trees: Queue[Path] = Queue()
        for job in range(given.jobs):
            tree = Path(folder) / str(job)
            tree.mkdir()
            subprocess.run(["tar", "-x", "-C", tree], input=_git("archive", commit), check=True)
            trees.put(tree)
        drawn = draw(_candidate_files(tree), commit, given.count, tree)
        rows = {mutant: row for mutant, row in _known(commit).items() if mutant in drawn}
        if not rows and (failed := _first_failure(short_suite(), tree)) is not None:
            sys.exit(f"mutate: the suite must pass before anything is changed, and {failed} fails")

        def one(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                row = rows[mutant] = attempt(mutant, tree)
            finally:
                trees.put(tree)
            outcome = row["caught_by"] or "SURVIVES"
            print(f"{mutant.file}:{mutant.line}: {outcome} ({row['seconds']} s)", flush=True)
            _write(commit, [rows[mutant] for mutant in drawn if mutant in rows], len(drawn))

        with ThreadPoolExecutor(given.jobs) as pool:
            list(pool.map(one, [mutant for mutant in drawn if mutant not in rows]))


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout


def _candidate_files(tree: Path) -> list[Path]:
    package = tree / PACKAGE
    files = sorted(package.rglob("*.py"))
    return [file for file in files if not file.relative_to(package).as_posix().startswith(LEFT_OUT)]


def _known(commit: str) -> dict[Mutant, dict[str, Any]]:
    """What the file holds of this commit."""
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    rows = result["rows"] if result.get("commit") == commit else []
    return {Mutant(*(row[name] for name in ("file", "line", "before", "after"))): row for row in rows}


def _write(commit: str, rows: list[dict[str, Any]], drawn: int) -> None:
    caught = sum(row["caught_by"] is not None for row in rows)
    result = {
        **about("mutation", quick=False, device="cpu"),
        "command": f"python -m benchmarks.tools.mutate --commit {commit[:7]}",
        "commit": commit,
        "drawn": drawn,
        "tried": len(rows),
        "caught": caught,
        "rows": rows,
    }
    RESULT.write_text(as_json(result), encoding="utf-8")


if __name__ == "__main__":
    main()
