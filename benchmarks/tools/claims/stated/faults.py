"""What we say of faults, of restarts and of long runs."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import faults
from benchmarks.tools.claims.rules import asserted

__all__ = ["CLAIMS"]


CLAIMS = (
    Claim(
        "faults",
        "docs/resuming.md",
        "A resumed run is the unbroken one, bit for bit; the schedule found replays without a probe",
        asserted("weights, decisions and rates are equal"),
        tests=(
            "tests/unit/autolr/test_auto_lr.py::test_a_run_taken_up_is_the_unbroken_one",
            "tests/unit/autolr/test_auto_lr.py::test_the_found_schedule_needs_no_probe",
        ),
    ),
    Claim(
        "faults",
        "docs/evidence.md",
        "Ranks killed, stopped or terminated at random: restarted, it ends as the unbroken run, bit for bit",
        faults.no_kill_is_felt,
        ("chaos",),
    ),
    Claim(
        "faults",
        "docs/evidence.md",
        "NaN, Inf and explosions on random ranks: nothing that is not finite is in a mean",
        faults.no_poison_is_averaged,
        ("chaos",),
    ),
    Claim(
        "faults",
        "docs/evidence.md",
        "Memory, state and step time of a long run are flat",
        faults.nothing_grows,
        ("chaos",),
    ),
)
