"""Which runs the zoo is made of."""

import math

from benchmarks.zoo.plan import PEERS, Plan, Run, best_settings, planned, run_of
from tests.benchmarks.zoo.rows import complete, row_of

CELLS = [("letter-mlp", "adamw"), ("letter-mlp", "sgd")]


def valley(at):
    """A loss that is best at one rate."""
    return lambda run: 1 + abs(math.log10((run.rate or at) / at)) + 0.01 * run.seed


def test_all_cells_come_before_the_next_rate_and_the_usual_rate_comes_first():
    runs = planned(Plan(CELLS), {})
    assert [(run.optimizer, run.rate) for run in runs[:2]] == [("adamw", 1e-3), ("sgd", 1e-2)]
    assert {(run.task, run.optimizer) for run in runs[2:4]} == set(CELLS)
    assert len(runs) == len(set(runs))


def test_a_whole_plan_has_other_seeds_of_the_two_best_settings():
    done = complete(Plan(CELLS[:1]), valley(1e-3))
    sweep = [run for run in done if run.method == "fixed" and run.seed == 0]
    assert len(sweep) == 8 * 2
    later = [run for run in done if run.method == "fixed" and run.seed == 1]
    assert {(run.rate, run.schedule) for run in later} == {(1e-3, "onecycle"), (1e-3, "wsd")}
    assert sum(run.method == "autolr" for run in done) == 3


def test_a_sweep_goes_on_while_its_edge_is_best():
    rates = {run.rate for run in complete(Plan(CELLS[1:]), valley(1e-6)) if run.method == "fixed"}
    assert min(rates) == 3.162e-07


def test_a_sweep_that_diverges_everywhere_ends():
    runs = complete(Plan(CELLS[1:], methods=("sweep",)), lambda run: math.inf)
    assert len({run.rate for run in runs}) == 16


def test_methods_are_chosen():
    assert {run.method for run in planned(Plan(CELLS, methods=("autolr",)), {})} == {"autolr"}
    assert [run.rate for run in planned(Plan(CELLS, methods=("default",), seeds=1), {})] == [1e-3, 1e-2]


def test_peers_are_for_their_optimizers_alone():
    runs = planned(Plan([*CELLS, ("letter-mlp", "lion")], methods=tuple(PEERS), seeds=1), {})
    assert {(run.method, run.optimizer) for run in runs} == {
        *(("prodigy", "adamw"), ("greedy-bounds", "adamw")),
        *(("schedule-free", "adamw"), ("schedule-free", "sgd"), ("greedy", "adamw"), ("greedy", "sgd")),
    }
    assert {run.rate for run in runs} == {None}


def test_the_best_with_the_choice_of_weights_gets_other_seeds_too():
    losses = {1e-3: (1.0, 1.0), 1e-2: (1.1, 1.1), 1e-1: (3.0, 0.9)}
    plan = Plan(CELLS[:1])
    swept = {(rate, "wsd"): row_of(plan.fixed(CELLS[0], (rate, "wsd"), 0), *losses[rate]) for rate in losses}
    assert best_settings(swept) == [(1e-3, "wsd"), (1e-1, "wsd")]


def test_a_row_knows_its_run():
    run = Run("letter-mlp", "sgd", "fixed", 0.1, "wsd", 2, "cuda")
    assert run_of(row_of(run, 1.0)) == run
    assert str(run) == "letter-mlp sgd fixed 0.1 wsd seed 2"
