"""The oldest versions that the package promises, and some between: each pair of Python and torch in an
environment of its own.

``make floors`` makes one under ``runs/floors`` for each pair of which the interpreter is here and torch comes
without CUDA, installs what the package requires, runs the tests that meet torch most, some on real ranks, and
writes docs/floors.json and the table in CONTRIBUTING.md. The oldest pair takes the oldest versions of the
extra ``cli`` as well. What could not be tried is in the table, too, with the reason. ``--only 3.10-2.6.0``
runs a pair anew and keeps the other rows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as Xml
from pathlib import Path
from typing import Any

from benchmarks.machine import about
from benchmarks.show import as_json

__all__ = ["PAIRS", "fill", "main", "table"]

ROOT = Path(__file__).parents[2]
#: Python, torch. The first is the floor of pyproject.toml.
PAIRS = (
    *(("3.10", "2.6.0"), ("3.13", "2.6.0"), ("3.11", "2.6.0"), ("3.12", "2.6.0")),
    *(("3.13", "2.10.0"), ("3.10", "2.10.0"), ("3.12", "2.11.0"), ("3.11", "2.13.0")),
)
#: What every pair runs: the rooms that touch torch's insides, the doors' arguments, real ranks.
TESTS = (
    *(f"tests/unit/{room}" for room in ("hyperparameters", "replicas", "loop", "published", "probes")),
    *("tests/unit/test_history.py", "tests/unit/cli/test_cli.py", "tests/distributed/test_fan_out.py"),
)
#: Warnings of ours stay errors; that others deprecate things in old versions is their affair.
QUIET = (
    *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
    *("-W", "ignore:Guards may run slower on Python 3.13.0:RuntimeWarning"),
)
CONSTRAINTS = ROOT / "constraints-floor.txt"
RESULT = ROOT / "docs" / "floors.json"
DOCUMENT = ROOT / "CONTRIBUTING.md"


def interpreter(version: str) -> str | None:
    """A Python of this version, pyenv's or on the path. Pyenv's shims are on the path for versions that they
    then refuse, so it is asked who it is."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for path in (*sorted(folder.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")):
        if (
            path
            and f"Python {version}." in subprocess.run([path, "-V"], capture_output=True, text=True).stdout
        ):
            return str(path)
    return None


def needs_cuda(python: str, torch: str) -> bool | None:
    """Whether pip would bring gigabytes of CUDA with it; None where there is no such torch."""
    asked = [python, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
    told = subprocess.run(
        [*asked, "--report", "-", f"torch=={torch}"], capture_output=True, text=True, check=False
    )
    if told.returncode:
        return None
    wanted = json.loads(told.stdout)["install"][0]["metadata"].get("requires_dist", [])
    here = os.uname().machine
    of_cuda = [line for line in wanted if re.match(r"(nvidia|cuda)-", line)]
    return any("platform_machine" not in line or here in line for line in of_cuda)


def environment(folder: Path, python: str, torch: str, *, oldest: bool) -> Path:
    """Its interpreter; made once."""
    own = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(own), "-m", "pip", "install", "--quiet", f"torch=={torch}", f"{ROOT}[cli,dev]"]
        subprocess.run([*install, *(["--constraint", str(CONSTRAINTS)] if oldest else [])], check=True)
        subprocess.run([str(own), "-m", "pip", "uninstall", "--quiet", "--yes", "hdet"], check=True)
        (folder / ".ready").touch()
    return own


def run(own: Path, results: Path) -> dict[str, int]:
    """How many tests passed, failed and were skipped."""
    results.unlink(missing_ok=True)
    variables = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    quiet = ["-q", "-p", "no:cacheprovider", *QUIET, "--junitxml", str(results)]
    subprocess.run([str(own), "-m", "pytest", *TESTS, *quiet], cwd=ROOT, env=variables, check=False)
    return counted(results)


def counted(results: Path) -> dict[str, int]:
    """Of the file that pytest wrote."""
    suite = next(Xml.parse(results).getroot().iter("testsuite"))
    every, skipped, *bad = (int(suite.attrib[name]) for name in ("tests", "skipped", "failures", "errors"))
    return {"passed": every - skipped - sum(bad), "failed": sum(bad), "skipped": skipped}


def tried(folder: Path, python: str, torch: str) -> dict[str, Any]:
    """What came of a pair, or why it was not tried."""
    found = interpreter(python)
    if found is None:
        return {"reason": "no such Python here"}
    cuda = needs_cuda(found, torch)
    if cuda is not False:
        return {"reason": "no such torch here" if cuda is None else "it comes with CUDA alone here"}
    name = f"python{python}-torch{torch}"
    own = environment(folder / name, found, torch, oldest=(python, torch) == PAIRS[0])
    return dict(run(own, folder / f"{name}.xml"))


def table(result: dict[str, Any]) -> str:
    """As the documents have it."""
    lines = ["| Python | torch | passed | failed | skipped |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        told = [str(row[name]) for name in ("passed", "failed", "skipped")] if "passed" in row else None
        cells = told or [f"not tried: {row['reason']}", "", ""]
        lines.append(f"| {row['python']} | {row['torch']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def keep(row: dict[str, Any]) -> dict[str, Any]:
    """Put a row into the file, in place of an older one: two runs may write at once."""
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() else []
    known = {(old["python"], old["torch"]): old for old in [*rows, row]}
    machine = {**about("floors", quick=False, device="cpu"), "command": "make floors"}
    result = {**machine, "rows": [known[pair] for pair in PAIRS if pair in known]}
    RESULT.write_text(as_json(result), encoding="utf-8")
    return result


def fill(text: str, result: dict[str, Any]) -> str:
    """A document with the table anew."""
    place = re.compile(r"(<!-- floors -->\n).*?(<!-- end -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}{table(result)}\n{found[2]}", text)


def main() -> int:
    """The status is 1 where a test failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools.floors", description=__doc__)
    names = [f"{python}-{torch}" for python, torch in PAIRS]
    parser.add_argument("--only", choices=names, action="append", help="Of several pairs, give it again.")
    wanted = parser.parse_args().only or names
    for name, (python, torch) in zip(names, PAIRS, strict=True):
        if name in wanted:
            result = keep(
                {"python": python, "torch": torch, **tried(ROOT / "runs" / "floors", python, torch)}
            )
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(fill(text, result), encoding="utf-8")
    print(table(result))
    return int(any(row.get("failed", 0) for row in result["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
