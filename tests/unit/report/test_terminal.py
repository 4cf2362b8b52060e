"""A run as lines of text."""

from __future__ import annotations

from hdet.report.alerts import Alert
from hdet.report.terminal import drawn, sparkline, summary
from tests.browser.histories import nothing_finite, sync, whole


def test_a_screen_of_a_run() -> None:
    text = drawn("mine", whole(), [Alert(100, "warning", "relapse", "it rose")])
    verdict, rate, loss, alert = text.splitlines()
    assert verdict.startswith("mine: Found a learning rate")
    assert rate.strip().startswith("rate  ▁")
    assert loss.strip().endswith("0.494")
    assert alert == "  warning: step 100: relapse: it rose"


def test_what_is_not_finite_is_a_gap() -> None:
    assert sparkline([1.0, None, 2.0]) == "▁ █"
    assert sparkline([]) == sparkline([None]).strip() == ""
    assert "–" in drawn("mine", nothing_finite(), [])
    assert len(sparkline(list(range(10_000)), width=50)) <= 50


def test_a_summary_is_plain_values() -> None:
    told = summary("mine", [sync(0), *whole()[1:]])
    assert told["run"] == "mine"
    assert {alert["kind"] for alert in told["alerts"]} == {"relapse", "overfitting", "steps not counted"}
