"""The cut of the package (docs/architecture.md), held by its imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hdet

ROOT = Path(hdet.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def uses(file: Path, *packages: str) -> set[str]:
    return {name for name in imports(file) for p in packages if name == p or name.startswith(p + ".")}


LEAVES = ("cli", "demo", "demo_published", "doctor", "experiments", "workloads", "__main__")


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports(file: Path) -> None:
    if room(file) in ("spread", "windows", "schedules", "controllers"):
        assert not uses(file, "torch", "numpy"), "the maths knows no torch"
        assert not uses(file, "hdet") - {n for n in imports(file) if n.startswith("hdet.controllers")}
    if room(file) not in ("replicas", "experiments"):
        assert not uses(file, "torch.distributed"), "only replicas/ knows torch.distributed"
    if room(file) == "replicas":
        assert not {n for n in uses(file, "hdet") if not n.startswith("hdet.replicas")}
    if room(file) not in LEAVES:
        assert not uses(file, *(f"hdet.{leaf}" for leaf in LEAVES)), "leaves import the core, not the reverse"
        assert not uses(file, "typer", "rich", "sklearn", "plotly"), "the library needs torch alone"
    assert not uses(file, "pickle"), "no pickle anywhere"


def test_public_names() -> None:
    assert sorted(hdet.__all__) == [
        "Arms",
        "AutoLR",
        "Betas",
        "Dropout",
        "Ensemble",
        "GradientClip",
        "HorizonController",
        "HorizonRecord",
        "Hyperparameter",
        "HyperparameterRecord",
        "LabelSmoothing",
        "LearningRate",
        "Momentum",
        "OneCycleAutoLR",
        "Probe",
        "RegressionController",
        "SoftmaxController",
        "StackedReplicas",
        "SyncRecord",
        "Temperature",
        "WeightDecay",
        "__version__",
        "replay",
        "warm_start_",
    ]
    assert all(hasattr(hdet, name) for name in hdet.__all__)
