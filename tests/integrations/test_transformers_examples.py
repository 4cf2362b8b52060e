"""The examples for Transformers, PEFT and Accelerate run as their second line says."""

from __future__ import annotations

import pytest

from tests.distributed.test_examples import run

pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
pytest.importorskip("peft", reason="make test-integrations installs PEFT")


@pytest.mark.parametrize("ranks", [1, 2])
def test_transformers_finetune(ranks: int) -> None:
    lines = [line for line in run("transformers_finetune.py", ranks) if "wards:" in line]
    assert [line.split(":")[0] for line in lines] == ["forwards", "backwards"]
    assert all(float(line.split()[2].rstrip(",")) < 0.1 for line in lines), "it began at 3.3"


def test_lora() -> None:
    words = run("lora.py")[-1].split()
    assert float(words[3].rstrip(";")) < 0.9 * float(words[1])
    assert float(words[8]) == float(words[3].rstrip(";"))


@pytest.mark.parametrize("ranks", [1, 2])
def test_accelerate_loop(ranks: int) -> None:
    *rounds, last = [line for line in run("accelerate_loop.py", ranks) if line.startswith(("step", "final"))]
    steps = [int(line.split()[1]) for line in rounds]
    assert steps == sorted(set(steps)), "no step twice: it went on where it was stopped"
    assert steps[-1] == 100
    assert float(last.split()[2]) < 0.02
