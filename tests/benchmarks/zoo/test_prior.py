"""The prior's two numbers follow from the rows and the paces that are committed."""

import pytest

from benchmarks.zoo import prior
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.families import part_of
from hdet.autolr import prior as theirs


def test_the_command_gives_the_coefficients_that_are_in_the_library(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["prior"])
    found = prior.main()
    assert '"slope"' in capsys.readouterr().out
    assert (round(found["height"], 2), round(found["slope"], 2)) == (theirs._AT_ONE, theirs._SLOPE)
    assert found["left_out"]["line"] < 0.8 * found["left_out"]["constant"]


def test_no_cell_of_dev_or_test_is_fitted_to():
    points = prior._points("fit")
    assert {part_of(TASKS[task].family) for task, _ in points} == {"fit"}
    assert set(points) <= set(cells("fit"))
    assert len(points) > 90


def test_a_line_is_found():
    assert prior.fit([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx((1.0, 2.0))


def test_the_best_rate_is_where_the_losses_are_lowest():
    swept = {(rate, "wsd"): {"test_chosen": loss} for rate, loss in ((1e-3, 2.0), (1e-2, 1.0), (1e-1, 1.0))}
    swept[1e-4, "onecycle"] = {"test_chosen": 0.1}  # of another schedule
    swept[1.0, "wsd"] = {"test_chosen": None}  # it left nothing
    assert prior._best(0.0, swept) == pytest.approx(-1.5)
