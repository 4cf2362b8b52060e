"""Places of a page are filled, and a mark that cannot be filled says where it stands and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.tools.quote import fill
from tests import ROOT


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    (tmp_path / "made-up.json").write_text(json.dumps({"loss": 0.5}), encoding="utf-8")
    return tmp_path


def test_a_mark_out_of_place_is_no_silence(evidence: Path) -> None:
    for text, why in [
        ("a <!-- number: other loss .1f -->1<!-- end -->", "there is no other.json"),
        ("<!-- quote: other -->\n<!-- end -->", "there is no other.json"),
        ("a <!-- number: made-up loss .1f -->1", "has no <!-- end -->"),
        (
            "a <!-- number: made-up loss .1f -->1, b <!-- number: made-up loss .1f -->1<!-- end -->",
            "has no <!-- end -->",
        ),
        ("a <!-- end -->", "begins nothing"),
        ("<!-- number: made-up loss .1f -->1<!-- end -->", "begins its line"),
        ("- <!-- number: made-up loss .1f -->1<!-- end -->", "begins its line"),
        ("a <!-- verdicts --> <!-- end -->", "a table needs lines of its own"),
    ]:
        with pytest.raises(ValueError, match=r"docs/page\.md, line 1, <!--") as raised:
            fill(text, evidence, "docs/page.md")
        assert why in str(raised.value)


def test_a_mark_in_a_code_span_is_text(evidence: Path) -> None:
    text = "Write `<!-- number: made-up loss .1f -->1`."
    assert fill(text, evidence) == text


def test_a_source_is_command_machine_and_date() -> None:
    text = fill("By <!-- source: autolr step --><!-- end -->.", ROOT / "docs" / "evidence")
    autolr, step = (
        json.loads((ROOT / f"docs/evidence/{name}.json").read_text()) for name in ("autolr", "step")
    )
    for result in (autolr, step):
        assert f"`{result['command']}`" in text
        assert result["machine"]["date"][:10] in text


def test_a_part_that_an_experiment_lacks_is_named() -> None:
    with pytest.raises(ValueError, match=r"excess.json has no part 'long': .* are 'brief'"):
        fill("<!-- quote: excess long -->\n<!-- end -->", ROOT / "docs" / "evidence")
