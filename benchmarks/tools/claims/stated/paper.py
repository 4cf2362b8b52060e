"""What the paper claims, in its order."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import paper, studies
from benchmarks.tools.claims.rules import asserted, refuted, untested

__all__ = ["CLAIMS"]

_TABLES = ("table1", "table1-kuairand", "pretraining")
_CURVES = ("figure2", "figure2-kuairand")
_RATES = ("figure3", "figure3-kuairand")
_STEP = ("step", "step-cuda")
_STUDIES = ("paper",)
_PRODUCTION = "needs the authors' production data, models and traffic"

CLAIMS = (
    Claim("paper", "§4.2, Table 1", "Plain training at 9e-4 crashes", paper.baseline_crashes, _TABLES),
    Claim(
        "paper",
        "§1, §4.3, §5, §6",
        "HDET trains stably where plain training crashes",
        paper.stable_where_plain_crashes,
        _TABLES,
    ),
    Claim(
        "paper",
        "§3.5, §4.3",
        "Warm-Init alone crashes too",
        paper.warm_start_crashes,
        (*_CURVES, "pretraining"),
    ),
    Claim(
        "paper",
        "§4.2, Figure 2",
        "Warm-Init's crash comes later than a cold start's, and is worse",
        paper.warm_start_crashes_later_and_worse,
        (*_CURVES, "pretraining"),
    ),
    Claim(
        "paper",
        "§4.3",
        "HDET w/o auto-LR ends below Baseline-Low, at nine times its rate",
        paper.without_auto_lr_beats_low,
        _TABLES,
    ),
    Claim(
        "paper",
        "§4.3",
        "It is spread and averaging alone that find the better optimum (against Warm-Init, at the same rate)",
        paper.spread_finds_better_optima,
        _TABLES,
    ),
    Claim(
        "paper",
        "§4.2, §5, §6",
        "HDET (full) ends below Baseline-Low; α, T and σ need no tuning for that",
        paper.full_beats_low,
        _TABLES,
    ),
    Claim("paper", "§4.3", "The warm start contributes by itself", paper.warm_start_contributes, _TABLES),
    Claim("paper", "§4.3", "Auto-LR contributes by itself, as much", paper.auto_lr_contributes, _TABLES),
    Claim(
        "paper",
        "abstract",
        "Auto-LR improves training and generalisation (cold start, against plain training at the same rate)",
        paper.auto_lr_improves,
        _TABLES,
    ),
    Claim(
        "paper",
        "§1, §4.3",
        "Auto-LR makes choosing a schedule needless, and gains most where the rate is far off",
        paper.needs_no_schedule,
        ("replicas", "regret-cpu"),
    ),
    Claim(
        "paper",
        "§3.4, Eq. 6",
        "Replicas that do better at a higher rate raise it: the signal points the right way",
        paper.signal_points_up,
        ("replicas",),
    ),
    Claim(
        "paper",
        "§3.3",
        "Averaging over a spread generalises better (against Warm-Init; flatness was not measured)",
        paper.averaging_generalises,
        _TABLES,
    ),
    Claim(
        "paper",
        "§3.3",
        "Averaging over a spread generalises better (against plain training below the edge, T ≤ 10)",
        studies.close_averaging_generalises,
        _STUDIES,
    ),
    Claim("paper", "§1", "HDET converges faster (mean loss over the run)", paper.converges_sooner, _CURVES),
    Claim(
        "paper",
        "§3.5",
        "A warm start accelerates early convergence",
        paper.warm_start_is_ahead_early,
        _CURVES,
    ),
    Claim(
        "paper",
        "§2",
        "The spread makes replicas about as diverse as a deep ensemble",
        refuted("on a shared gradient they lie on one line through their start, within 1e-12"),
        tests=("tests/distributed/test_fan_out.py::test_replica_moves_rho_times_the_base_displacement",),
    ),
    Claim(
        "paper",
        "§5, Figure 3",
        "Group by group an order emerges: transformer lowest, no_decay highest",
        paper.order_emerges,
        _RATES,
    ),
    Claim(
        "paper",
        "§4.3, Figure 3",
        "Auto-LR ends at a residual rate of about 2/9 of the peak (Eq. 8 as printed, f_div/f_final = 25/5)",
        studies.residual_rate,
        _STUDIES,
    ),
    Claim(
        "paper",
        "§3.3, §6",
        "The extra all_reduce costs O(1/T), about 0.1 % at T = 1000",
        paper.costs_a_thousandth,
        _STEP,
    ),
    Claim(
        "paper",
        "§3.2",
        "α = 0 is data parallelism exactly",
        asserted("weights equal bit for bit"),
        tests=("tests/distributed/test_fan_out.py::test_alpha_zero_is_plain_ddp_bit_for_bit",),
    ),
    Claim(
        "paper",
        "abstract, §1",
        "A drop-in replacement for OneCycleLR",
        asserted("the authors' loop runs with the import replaced; OneCycleLR's curve bit for bit"),
        tests=(
            "tests/distributed/test_drop_in.py::test_the_authors_loop_runs_unchanged",
            "tests/unit/published/test_one_cycle.py::test_equals_torch_bit_for_bit",
        ),
    ),
    Claim(
        "paper",
        "§3.4, Eq. 8",
        "γ brings the rate down to OneCycleLR's floor",
        refuted(
            "as printed the rate grows where f_div < f_final (400-fold with OneCycleLR's defaults) and "
            "leaves a residual otherwise (a fifth of the peak with 25/5); corrected, it ends at the floor"
        ),
        tests=("tests/unit/published/test_softmax.py::test_decay_rules",),
    ),
    Claim(
        "paper",
        "§3.4, Eq. 9",
        "An independent permutation for each hyperparameter decorrelates them",
        asserted("uniform and independent, so on average; an orthogonal design does so exactly"),
        tests=(
            "tests/unit/loop/test_levels.py::test_permutations_are_uniform_and_independent",
            "tests/unit/loop/test_levels.py::test_an_orthogonal_design_balances_every_hyperparameter_and_every_pair",
        ),
    ),
    Claim(
        "paper",
        "§3.4, Eq. 9",
        "That reassignment is critical (the loss is above without it)",
        studies.reassignment_is_critical,
        _STUDIES,
    ),
    Claim(
        "paper",
        "§3.5, Remark 1, §6",
        "Any scalar hyperparameter can be found so (here with a held-out probe, not the training loss)",
        paper.any_scalar,
        ("hyperparameters",),
    ),
    Claim("paper", "§4.3", "Ahead in 10+ independent models, in offline AUC and NE", untested(_PRODUCTION)),
    Claim("paper", "§4.3", "Deployed in production", untested(_PRODUCTION)),
    Claim(
        "paper",
        "§6, future work",
        "Language-model pre-training over several epochs lets auto-LR adapt",
        paper.adapts_in_pretraining,
        ("pretraining",),
    ),
    Claim(
        "paper",
        "§6, future work",
        "The order of the groups is a prior for their spreads; a theory of convergence",
        untested("the order did not emerge; the theory is the paper's open question"),
    ),
)
