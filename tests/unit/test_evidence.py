"""What the documents say is what the JSON files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdet.experiments import autolr
from hdet.experiments.quote import DOCUMENTS, fill
from hdet.experiments.regret import recomputed

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "evidence"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_documents_quote_the_evidence(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert "<!-- quote: " in text
    assert fill(text, EVIDENCE) == text, "run: python -m hdet.experiments.quote"


def test_every_file_is_quoted_and_says_how_it_was_made() -> None:
    texts = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    files = sorted(EVIDENCE.glob("*.json"))
    assert files
    for file in files:
        result = json.loads(file.read_text(encoding="utf-8"))
        assert result["command"].startswith("hdet bench ")
        assert "--quick" not in result["command"]
        assert {"torch", "cpu", "cores", "date"} <= result["machine"].keys()
        assert f"<!-- quote: {file.stem} -->" in texts, f"{file.name} is quoted nowhere"


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    result = json.loads((EVIDENCE / "converge.json").read_text(encoding="utf-8"))
    result["rows"][0]["ratio_to_limit"]["hdet"] += 0.5
    for file in EVIDENCE.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "converge.json").write_text(json.dumps(result), encoding="utf-8")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert fill(text, tmp_path) != text


@pytest.mark.parametrize("name", ["regret", "regret-cpu"])
def test_the_regret_follows_from_the_runs_beside_it(name: str) -> None:
    result = json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(recomputed(result))) == result


def test_the_cost_of_auto_lr_is_measured() -> None:
    result = autolr.run(quick=True)
    assert result["command"] == "hdet bench autolr --quick"
    for row in result["rows"]:
        assert len(row["seconds_abba"]) == 4
        assert row["overhead"] == pytest.approx(
            sum(row["seconds_abba"][1:3]) / (row["seconds_abba"][0] + row["seconds_abba"][3]) - 1, abs=0.01
        )
    # Mean, previous mean and last iterate; weights and optimizer state again in the snapshot.
    adamw, sgd = (row["extra_memory_in_weights"] for row in result["rows"])
    assert adamw == pytest.approx(6, abs=0.1)
    assert sgd == pytest.approx(5, abs=0.1)
