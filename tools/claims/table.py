"""Every claim of the paper and of our README, with what was measured and the verdict that follows.

Nothing here is typed by hand but the claims: numbers and verdicts come from docs/evidence/*.json by the rules
of :mod:`tools.claims.paper` and :mod:`tools.claims.readme`. What no number can show is
held by a test, which is named instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.claims import paper, readme
from tools.claims.rules import Judge, Result, asserted, machine_of, refuted, untested

__all__ = ["CLAIMS", "Claim", "table"]


@dataclass(frozen=True)
class Claim:
    """One claim: where it stands, in few words, what it is judged by, and the rule."""

    source: str
    text: str
    judge: Judge
    #: JSON files of docs/evidence, without their suffix.
    files: tuple[str, ...] = ()
    #: Tests that hold it, as ``file::function``.
    tests: tuple[str, ...] = ()


_TABLES = ("table1", "table1-kuairand", "pretraining")
_CURVES = ("figure2", "figure2-kuairand")
_RATES = ("figure3", "figure3-kuairand")
_REGRET = ("regret", "regret-cpu")
_STEP = ("step", "step-cuda")
_CONVERGE = ("converge", "converge-16-cores")
_PRODUCTION = "needs the authors' production data, models and traffic"

PAPER = (
    Claim("§4.2, Table 1", "Plain training at 9e-4 crashes", paper.baseline_crashes, _TABLES),
    Claim(
        "§1, §4.3, §5, §6",
        "HDET trains stably where plain training crashes",
        paper.stable_where_plain_crashes,
        _TABLES,
    ),
    Claim(
        "§3.5, §4.3",
        "Warm-Init alone crashes too",
        paper.warm_start_crashes,
        (*_CURVES, "pretraining"),
    ),
    Claim(
        "§4.2, Figure 2",
        "Warm-Init's crash comes later than a cold start's, and is worse",
        paper.warm_start_crashes_later_and_worse,
        (*_CURVES, "pretraining"),
    ),
    Claim(
        "§4.3",
        "HDET w/o auto-LR ends below Baseline-Low, at nine times its rate",
        paper.without_auto_lr_beats_low,
        _TABLES,
    ),
    Claim(
        "§4.3",
        "It is spread and averaging alone that find the better optimum (against Warm-Init, at the same rate)",
        paper.spread_finds_better_optima,
        _TABLES,
    ),
    Claim(
        "§4.2, §5, §6",
        "HDET (full) ends below Baseline-Low; α, T and σ need no tuning for that",
        paper.full_beats_low,
        _TABLES,
    ),
    Claim("§4.3", "The warm start contributes by itself", paper.warm_start_contributes, _TABLES),
    Claim("§4.3", "Auto-LR contributes by itself, as much", paper.auto_lr_contributes, _TABLES),
    Claim(
        "abstract",
        "Auto-LR improves training and generalisation (cold start, against plain training at the same rate)",
        paper.auto_lr_improves,
        _TABLES,
    ),
    Claim(
        "§1, §4.3",
        "Auto-LR makes choosing a schedule needless, and gains most where the rate is far off",
        paper.needs_no_schedule,
        ("replicas", "regret-cpu"),
    ),
    Claim(
        "§3.4, Eq. 6",
        "Replicas that do better at a higher rate raise it: the signal points the right way",
        paper.signal_points_up,
        ("replicas",),
    ),
    Claim(
        "§3.3",
        "Averaging over a spread generalises better (against Warm-Init; flatness was not measured)",
        paper.averaging_generalises,
        _TABLES,
    ),
    Claim("§1", "HDET converges faster (mean loss over the run)", paper.converges_sooner, _CURVES),
    Claim(
        "§3.5",
        "A warm start accelerates early convergence",
        paper.warm_start_is_ahead_early,
        _CURVES,
    ),
    Claim(
        "§2",
        "The spread makes replicas about as diverse as a deep ensemble",
        refuted("on a shared gradient they lie on one line through their start, within 1e-12"),
        tests=("tests/distributed/test_fan_out.py::test_replica_moves_rho_times_the_base_displacement",),
    ),
    Claim(
        "§5, Figure 3",
        "Group by group an order emerges: transformer lowest, no_decay highest",
        paper.order_emerges,
        _RATES,
    ),
    Claim(
        "§4.3, Figure 3",
        "Auto-LR ends at a residual rate of about 2/9 of the peak",
        paper.residual_rate,
        _RATES,
    ),
    Claim(
        "§3.3, §6",
        "The extra all_reduce costs O(1/T), about 0.1 % at T = 1000",
        paper.costs_a_thousandth,
        _STEP,
    ),
    Claim(
        "§3.2",
        "α = 0 is data parallelism exactly",
        asserted("weights equal bit for bit"),
        tests=("tests/distributed/test_fan_out.py::test_alpha_zero_is_plain_ddp_bit_for_bit",),
    ),
    Claim(
        "abstract, §1",
        "A drop-in replacement for OneCycleLR",
        asserted("the authors' loop runs with the import replaced; OneCycleLR's curve bit for bit"),
        tests=(
            "tests/distributed/test_drop_in.py::test_the_authors_loop_runs_unchanged",
            "tests/unit/test_one_cycle.py::test_equals_torch_bit_for_bit",
        ),
    ),
    Claim(
        "§3.4, Eq. 8",
        "γ brings the rate down to OneCycleLR's floor",
        refuted(
            "as printed the rate grows 400-fold with OneCycleLR's defaults; mended, it ends at the floor"
        ),
        tests=("tests/unit/controllers/test_softmax.py::test_decay_rules",),
    ),
    Claim(
        "§3.4, Eq. 9",
        "An independent permutation for each hyperparameter decorrelates them",
        asserted("uniform and independent, so on average; an orthogonal design does so exactly"),
        tests=(
            "tests/unit/engine/test_design.py::test_permutations_are_uniform_and_independent",
            "tests/unit/engine/test_design.py::test_an_orthogonal_design_balances_every_hyperparameter_and_every_pair",
        ),
    ),
    Claim("§3.4, Eq. 9", "That reassignment is critical", untested("nothing was run without it")),
    Claim(
        "§3.5, Remark 1, §6",
        "Any scalar hyperparameter can be found so (here with a held-out probe, not the training loss)",
        paper.any_scalar,
        ("hyperparameters",),
    ),
    Claim("§4.3", "Ahead in 10+ independent models, in offline AUC and NE", untested(_PRODUCTION)),
    Claim("§4.3", "Deployed in production", untested(_PRODUCTION)),
    Claim(
        "§6, future work",
        "Language-model pre-training over several epochs lets auto-LR adapt",
        paper.adapts_in_pretraining,
        ("pretraining",),
    ),
    Claim(
        "§6, future work",
        "The order of the groups is a prior for their spreads; a theory of convergence",
        untested("the order did not emerge; the theory is the paper's open question"),
    ),
)

README = (
    Claim(
        "README, top",
        "AutoLR ends 2 % above a sweep with the same choice of weights on average and 5 % at worst (or 4 and "
        "10 %), ahead of the default rate and every peer",
        readme.near_the_sweep_with_its_choice,
        ("excess", "excess-optimizers"),
    ),
    Claim(
        "evidence, yardsticks",
        "One run of AutoLR solves what a search of AdamW's rate and betas does in 30 trials, or in 10",
        readme.solves_as_ten_trials_do,
        ("lightbench",),
    ),
    Claim(
        "evidence, yardsticks",
        "On DeepOBS's quadratic_deep AutoLR is within the error of published tuned runs, or below",
        readme.reaches_published,
        ("deepobs",),
    ),
    Claim(
        "paper, abstract; evidence, What replicas add",
        "Replicas help AutoLR to find the learning rate",
        readme.replicas_help_the_search,
        ("fan-out",),
    ),
    Claim(
        "evidence, six tasks",
        "AutoLR, given no rate, loses to a tuned sweep 0.3 % on average and 1 % at worst (or 0.7 and 2 %)",
        readme.near_the_sweep,
        _REGRET,
    ),
    Claim(
        "evidence, six tasks",
        "AutoLR is ahead of what else asks for no rate",
        readme.ahead_of_peers,
        _REGRET,
    ),
    Claim("evidence, goals", "AutoLR never diverges", readme.never_diverges, _REGRET),
    Claim(
        "README, top",
        "The optimizer's own rate is not read",
        readme.optimizers_rate_is_not_read,
        _REGRET,
        ("tests/unit/test_auto_lr.py::test_no_learning_rate_is_read",),
    ),
    Claim(
        "README, Its experiments",
        "AutoLR ends about where the tuned baseline does (not above it)",
        readme.as_good_as_tuned,
        _TABLES,
    ),
    Claim(
        "evidence, goals",
        "AutoLR adds at most 2 % of wall-clock",
        readme.costs_two_percent,
        ("autolr", "autolr-cuda"),
    ),
    Claim(
        "README, How it finds one",
        "A resumed run is the unbroken one, bit for bit; the schedule found replays without a probe",
        asserted("weights, decisions and rates are equal"),
        tests=(
            "tests/unit/test_auto_lr.py::test_a_run_taken_up_is_the_unbroken_one",
            "tests/unit/test_auto_lr.py::test_the_found_schedule_needs_no_probe",
        ),
    ),
    Claim(
        "README, Any scalar",
        "From far too low and too high, four others recover 80 % each (or three of them 50 %)",
        readme.recovers,
        ("hyperparameters",),
    ),
    Claim(
        "README, Any scalar",
        "Four at once beat one after the other at the same budget",
        readme.all_at_once_beats_in_turn,
        ("hyperparameters",),
    ),
    Claim(
        "README, Its experiments",
        "Where plain training crashes HDET crashes as well, warm and cold",
        readme.crashes_as_well,
        _TABLES,
    ),
    Claim(
        "README, Its experiments",
        "Spread, averaging and auto-LR change the loss by less than the seeds differ (against Warm-Init)",
        readme.changes_nothing,
        _TABLES,
    ),
    Claim(
        "README, Its experiments",
        "The published controller moves rates by a few per cent",
        readme.moves_a_few_percent,
        _RATES,
    ),
    Claim(
        "README, Its experiments", "The order in which it does so does not repeat", readme.no_order, _RATES
    ),
    Claim(
        "README, Its experiments",
        "With more replicas its decision is less noisy, like 1/√N",
        readme.decision_steadies,
        ("replicas",),
    ),
    Claim(
        "README, Its experiments",
        "Started ten times too low, it stays there",
        readme.ten_times_off_stays_off,
        ("replicas",),
    ),
    Claim(
        "README, The published method",
        "Just below the crash it is the less stable of the two",
        untested(
            "six seeds of the digits are in the log, but no command writes them; the table is at the crash"
        ),
    ),
    Claim(
        "README, The published method",
        "The method is that of a serial twin of the paper's equations",
        asserted("weights, rates and decisions are equal, decay as printed and as mended"),
        tests=("tests/distributed/test_published.py::test_equals_the_serial_twin",),
    ),
    Claim(
        "README, Where the sources contradict themselves",
        "One NaN loss has no vote; random state is untouched; a last converge ends every run",
        asserted("each of the three, on real processes or in one"),
        tests=(
            "tests/distributed/test_published.py::test_a_broken_loss_has_no_vote",
            "tests/unit/test_one_cycle.py::test_global_random_states_are_left_alone",
            "tests/distributed/test_fan_out.py::test_converge_on_demand_and_at_the_last_step",
        ),
    ),
    Claim(
        "README, Limits",
        "HDET w/o auto-LR follows the path of plain data parallelism (against Warm-Init)",
        readme.same_path_as_plain,
        _TABLES,
    ),
    Claim(
        "README, Limits",
        "Near the end of an interval a smaller step always looks better",
        untested("decisions are measured over whole intervals, where they are noise (above)"),
    ),
    Claim(
        "README, Limits",
        "What cannot diverge (ZeRO, 1-D FSDP) is refused",
        asserted("refused, with the reason"),
        tests=("tests/distributed/test_bad_input.py::test_what_cannot_diverge_is_refused",),
    ),
    Claim(
        "README, What it costs",
        "Averaging takes at most 1.3 times one flat all_reduce",
        readme.averaging_near_the_limit,
        _CONVERGE,
    ),
    Claim(
        "README, What it costs",
        "Averaging is ahead of average_parameters and of one all_reduce per tensor",
        readme.averaging_beats_others,
        _CONVERGE,
    ),
    Claim(
        "README, What it costs",
        "step(loss) takes at most 1.5 times OneCycleLR's",
        readme.call_costs_little,
        _STEP,
    ),
    Claim(
        "evidence, goals",
        "AutoTune is ahead of every search at the same samples on four of six tasks",
        readme.ahead_of_searches,
        ("autotune",),
    ),
    Claim(
        "evidence, goals",
        "AutoTune ends within 3 % of a sweep of ten times its samples",
        readme.near_the_truth,
        ("autotune",),
    ),
    Claim(
        "evidence, Any scalar hyperparameter",
        "Too low a temperature cannot be found by rounds of 25 steps: a better one does not look better yet",
        readme.temperature_shows_late,
        ("delay",),
    ),
    Claim(
        "evidence, What AutoLR costs",
        "Around a billion parameters: one copy of the weights, 2 % of 500 steps, packing at 80 % of a copy",
        readme.light_around_a_large_model,
        ("large",),
    ),
    Claim("README, What it costs", "It never waits for the device", readme.never_waits, ("step-cuda",)),
    Claim(
        "README, What it costs",
        "At most 0.5 % over plain DDP at T = 100, 0.1 % at T = 1000",
        readme.step_costs_little,
        _STEP,
    ),
    Claim(
        "evidence, Scale",
        "Collectives, a converge and the memory of every door are predicted within 30 %",
        readme.cost_is_predicted,
        ("scale",),
    ),
    Claim(
        "evidence, Scale",
        "Sending displacements in bf16 or int8, with error feedback, ends where float32 does",
        readme.fewer_bits_change_nothing,
        ("scale",),
    ),
    Claim(
        "evidence, Islands",
        "The mean of islands that meet every 50 steps is no worse than DDP on the same samples",
        readme.islands_end_as_plain,
        ("islands",),
    ),
    Claim(
        "evidence, Islands",
        "DiLoCo's outer step (0.7, momentum 0.9) is ahead of that mean",
        readme.an_outer_step_helps,
        ("islands",),
    ),
    Claim(
        "README, N replicas",
        "Eight stacked replicas have three times the throughput of eight processes on one device",
        readme.stacked_is_faster,
        ("stacked", "stacked-cpu"),
    ),
    Claim(
        "README, N replicas",
        "Stacked replicas equal processes",
        asserted("within 1e-5 after three syncs"),
        tests=("tests/distributed/test_stacked_processes.py::test_every_optimizer_under_one_cycle",),
    ),
    Claim(
        "evidence, Chaos",
        "Ranks killed, stopped or terminated at random: restarted, it ends as the unbroken run, bit for bit",
        readme.no_kill_is_felt,
        ("chaos",),
    ),
    Claim(
        "evidence, Chaos",
        "NaN, Inf and explosions on random ranks: nothing that is not finite is in a mean",
        readme.no_poison_is_averaged,
        ("chaos",),
    ),
    Claim(
        "evidence, Chaos",
        "Memory, state and step time of a long run are flat",
        readme.nothing_grows,
        ("chaos",),
    ),
    Claim(
        "evidence, What data generation costs",
        "Drawing the feed's samples takes at most a tenth of a step",
        readme.drawing_is_cheap,
        ("feed",),
    ),
)

#: Those of the paper first, in its order.
CLAIMS = (*PAPER, *README)


def table(evidence: Path) -> str:
    """All claims as Markdown, with what the JSON files under ``evidence`` hold now."""
    results = {name: _read(evidence / f"{name}.json") for claim in CLAIMS for name in claim.files}
    headings = ["claim", "where", "measured", "evidence", "verdict"]
    lines = [headings, ["---"] * len(headings), *(_cells(claim, results) for claim in CLAIMS)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _read(file: Path) -> Result:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _cells(claim: Claim, results: Mapping[str, Result]) -> list[str]:
    mine = {name: results[name] for name in claim.files}
    measured, verdict = claim.judge(mine)
    made_by = [*_commands(mine.values()), *(f"`{test}`" for test in claim.tests)]
    return [claim.text, claim.source, measured, "; ".join(made_by) or "–", f"**{verdict.value}**"]


def _commands(results: Iterable[Result]) -> list[str]:
    """Commands and seeds, machine by machine."""
    by_machine: dict[str, list[str]] = {}
    for result in results:
        seeds = _seeds(result)
        said = f"`{result['command']}`" + (f" ({seeds} seeds)" if seeds else "")
        by_machine.setdefault(machine_of(result), []).append(said)
    return [f"{', '.join(commands)}, {machine}" for machine, commands in by_machine.items()]


def _seeds(result: Result) -> int | None:
    if "runs" in result:
        column = result["runs"]["header"].index("seed")
        return len({row[column] for row in result["runs"]["rows"]})
    counted: int | None = result.get("seeds", result.get("settings", {}).get("seeds"))
    return counted
