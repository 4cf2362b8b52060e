"""The cut of the package (docs/architecture.md), held by its imports."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import hdet
from tests import ROOT

PACKAGE = ROOT / "src" / "hdet"
FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({file.parent for file in FILES})

#: Which rooms a room may import, besides itself, and beside what lies in the package itself.
BELOW = {
    "hyperparameters": set(),
    "replicas": set(),
    "probes": {"replicas"},
    "loop": {"hyperparameters", "probes", "replicas"},
    "published": {"hyperparameters", "loop", "probes", "replicas"},
    "autolr": {"hyperparameters", "loop", "probes", "replicas"},
    "tuning": {"autolr", "hyperparameters", "loop", "probes", "published", "replicas"},
}
#: Files of the package itself: records and removed names, which import no room, and saving.
TOP = {"__init__", "history", "removed", "saving", "interruption"}
LEAVES = {"__main__", "cli", "integrations", "report"}

#: Files that know no torch: an equation is read and tested without it.
PURE = (
    "published/softmax.py",
    "tuning/regression.py",
    "autolr/rule.py",
    "autolr/choice.py",
    "autolr/clock.py",
    "loop/levels.py",
    "loop/windows.py",
    "history.py",
    "removed.py",
)


def name(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def room(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def module(file: Path) -> str:
    parts = ("hdet", *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(file): file for file in FILES}


def imports(file: Path) -> set[str]:
    """Every module that is named anywhere in a file: at its top, within a function, for a type checker."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports name the module in full"
            assert node.module
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def uses(file: Path, *packages: str) -> set[str]:
    return {name for name in imports(file) for p in packages if name == p or name.startswith(p + ".")}


def neighbours(file: Path) -> set[Path]:
    """The files of the package that it imports; what a folder's ``__init__`` hands on counts as its own."""
    return {MODULES[found] for found in imports(file) if found in MODULES} - {file}


def rooms_used(file: Path) -> set[str]:
    return {found.split(".")[1] for found in uses(file, "hdet") if "." in found} - {room(file)}


@pytest.mark.parametrize("file", FILES, ids=name)
def test_imports(file: Path) -> None:
    known = rooms_used(file)
    if room(file) in BELOW:
        assert known <= BELOW[room(file)] | {"history", "removed"}
    if name(file).startswith(PURE):
        assert not uses(file, "torch", "numpy"), "the maths knows no torch"
    if room(file) != "replicas":
        assert not uses(file, "torch.distributed"), "only replicas/ knows torch.distributed"
    if room(file) not in LEAVES:
        assert not known & LEAVES, "leaves import the library, never the reverse"
        heavy = {"typer", "rich", "sklearn", "plotly", "matplotlib", "numpy"}
        assert not uses(file, *heavy), "the library needs torch alone"
    assert not uses(file, "benchmarks", "tests"), "the package stands alone"
    assert not uses(file, "pickle"), "no pickle anywhere"


def test_every_file_has_a_room() -> None:
    assert {room(file) for file in FILES} == set(BELOW) | TOP | LEAVES


def circle(graph: dict[Path, set[Path]]) -> list[Path]:
    """Files that import one another, the first one again at the end; empty if there are none."""
    done: set[Path] = set()
    for start in graph:
        way: list[tuple[Path, Iterator[Path]]] = [(start, iter(graph[start]))] if start not in done else []
        while way:
            here, rest = way[-1]
            for there in rest:
                on_the_way = [file for file, _ in way]
                if there in on_the_way:
                    return [*on_the_way[on_the_way.index(there) :], there]
                if there not in done:
                    way.append((there, iter(graph[there])))
                    break
            else:
                done.add(here)
                way.pop()
    return []


def test_a_circle_is_found() -> None:
    a, b, c = Path("a"), Path("b"), Path("c")
    assert circle({a: {b}, b: {c}, c: set()}) == []
    assert circle({a: {b}, b: {c}, c: {b}}) == [b, c, b]
    assert circle({a: {c}, b: {a}, c: {b}}) == [a, c, b, a]


def test_no_files_import_one_another() -> None:
    """``hdet`` itself hands names on by request and is imported for its version: it is left out."""
    top = PACKAGE / "__init__.py"
    graph = {file: neighbours(file) - {top} for file in FILES if file != top}
    assert [name(file) for file in circle(graph)] == []


def test_the_loop_asks_nobody_what_he_is() -> None:
    """It holds a list of policies and knows one protocol."""
    kinds = re.compile(r"\b(Horizon|Regression|Vote|Fixed|Comparison)\b|isinstance\(\w*policy")
    for file in (PACKAGE / "loop").glob("*.py"):
        if file.name != "comparison.py":  # one of them, which two rooms build on
            assert not kinds.search(file.read_text(encoding="utf-8")), file.name


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda f: f.relative_to(PACKAGE.parent).as_posix())
def test_a_folder_says_what_lives_there(folder: Path) -> None:
    said = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert len(re.findall(r"[.:;](?:\s|$)", said)) >= 2, "what lives here, and what it may import"


def test_public_names() -> None:
    assert sorted(hdet.__all__) == [
        "Arms",
        "AutoLR",
        "AutoTune",
        "BestMean",
        "Betas",
        "Dropout",
        "Ensemble",
        "GradientClip",
        "Guard",
        "Hyperparameter",
        "Interruptible",
        "LabelSmoothing",
        "LearningRate",
        "Momentum",
        "OneCycleAutoLR",
        "Probe",
        "StackedReplicas",
        "Temperature",
        "WeightDecay",
        "__version__",
        "find",
        "load",
        "replay",
        "save",
        "warm_start_",
    ]
    assert all(hasattr(hdet, public) for public in hdet.__all__)


def test_names_that_are_imported_late_are_those_that_type_checkers_see() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module.removeprefix("hdet.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("hdet.")
        for alias in node.names
    }
    assert seen == hdet._HOMES
    assert {*seen, "__version__"} == set(hdet.__all__)


# ---------------------------------------------------------------------- what is imported when


def packages_after(code: str) -> set[str]:
    """Packages that a fresh interpreter holds after ``code``, the standard library's aside."""
    code += "\nimport sys; print(*{m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names))"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_hdet_imports_nothing_beyond_torch() -> None:
    everything = "import hdet\nfor name in hdet.__all__: getattr(hdet, name)"
    assert packages_after(everything) - packages_after("import torch, torch.distributed") == {"hdet"}
    assert "torch" not in packages_after("import hdet"), "names are imported when they are asked for"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_command_line_answers_at_once(option: str) -> None:
    code = (
        f"import sys\nsys.argv = ['hdet', '{option}']\n"
        "from hdet.cli import app\ntry: app()\nexcept SystemExit: pass"
    )
    assert not packages_after(code) & {"torch", "numpy", "sklearn", "matplotlib", "plotly"}
    own, needed = (
        [sys.executable, "-m", "hdet", option],
        [sys.executable, "-c", "import typer, rich.console"],
    )
    assert processor_seconds(own) < 3 * processor_seconds(needed), "hardly more than what it is written with"


def processor_seconds(command: list[str]) -> float:
    """The least of three. What else the machine does is no affair of the command."""
    seconds = []
    for _ in range(3):
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, timeout=60, capture_output=True)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return min(seconds)
