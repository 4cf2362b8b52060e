"""What we say of the published method, run again."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import published, studies
from benchmarks.tools.claims.rules import asserted, untested

__all__ = ["CLAIMS"]

_TABLES = ("table1", "table1-kuairand", "pretraining")
_RATES = ("figure3", "figure3-kuairand")
_STUDIES = ("paper",)

CLAIMS = (
    Claim(
        "paper",
        "docs/paper.md",
        "Where plain training crashes HDET crashes as well, warm and cold",
        published.crashes_as_well,
        _TABLES,
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "Spread, averaging and auto-LR change the loss by less than the seeds differ (against Warm-Init)",
        published.changes_nothing,
        _TABLES,
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "The published controller moves rates by a few per cent",
        published.moves_a_few_percent,
        _RATES,
    ),
    Claim(
        "paper", "docs/paper.md", "The order in which it does so does not repeat", published.no_order, _RATES
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "With more replicas its decision is less noisy, like 1/√N",
        published.decision_steadies,
        ("replicas",),
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "Started ten times too low, it stays there",
        published.ten_times_off_stays_off,
        ("replicas",),
    ),
    Claim(
        "paper",
        "docs/evidence.md",
        "Fan-out, with or without auto-LR, does not lower the rate at which training crashes",
        studies.edge_is_not_lowered,
        _STUDIES,
    ),
    Claim(
        "paper",
        "docs/evidence.md",
        "It raises that rate by less than a half",
        studies.edge_is_hardly_raised,
        _STUDIES,
    ),
    Claim(
        "paper",
        "docs/evidence.md",
        "Under Eq. 8 as printed the vote at σ = 0.1 changes the held-out loss by less than 0.5 %",
        studies.vote_changes_little,
        _STUDIES,
    ),
    Claim(
        "paper",
        "docs/evidence.md",
        "A wide spread with long intervals does harm (α ≥ 0.25, T = 200)",
        studies.wide_and_long_harms,
        _STUDIES,
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "The method is that of a serial twin of the paper's equations",
        asserted("weights, rates and decisions are equal, decay as printed and as mended"),
        tests=("tests/distributed/test_published.py::test_equals_the_serial_twin",),
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "One NaN loss has no vote; random state is untouched; a last converge ends every run",
        asserted("each of the three, on real processes or in one"),
        tests=(
            "tests/distributed/test_published.py::test_a_broken_loss_has_no_vote",
            "tests/unit/published/test_one_cycle.py::test_global_random_states_are_left_alone",
            "tests/distributed/test_fan_out.py::test_converge_on_demand_and_at_the_last_step",
        ),
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "HDET w/o auto-LR follows the path of plain data parallelism (against Warm-Init)",
        published.same_path_as_plain,
        _TABLES,
    ),
    Claim(
        "paper",
        "docs/paper.md",
        "Near the end of an interval a smaller step always looks better",
        untested("decisions are measured over whole intervals, where they are noise (above)"),
    ),
    Claim(
        "paper",
        "docs/evidence.md",
        "Drawing the feed's samples takes at most a tenth of a step",
        published.drawing_is_cheap,
        ("feed",),
    ),
)
