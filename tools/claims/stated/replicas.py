"""What we say of replicas, islands and fewer bits."""

from __future__ import annotations

from tools.claims.claim import Claim
from tools.claims.judges import replicas
from tools.claims.rules import asserted

__all__ = ["CLAIMS"]


CLAIMS = (
    Claim(
        "replicas",
        "docs/evidence.md",
        "Replicas help AutoLR to find the learning rate",
        replicas.replicas_help_the_search,
        ("fan-out",),
    ),
    Claim(
        "scale",
        "docs/large-models.md",
        "What cannot diverge (ZeRO, 1-D FSDP) is refused",
        asserted("refused, with the reason"),
        tests=("tests/distributed/test_bad_input.py::test_what_cannot_diverge_is_refused",),
    ),
    Claim(
        "scale",
        "docs/evidence.md",
        "Collectives, a converge and the memory of every door are predicted within 30 %",
        replicas.cost_is_predicted,
        ("scale",),
    ),
    Claim(
        "scale",
        "docs/evidence.md",
        "Sending displacements in bf16 or int8, with error feedback, ends where float32 does",
        replicas.fewer_bits_change_nothing,
        ("scale",),
    ),
    Claim(
        "scale",
        "docs/evidence.md",
        "The mean of islands that meet every 50 steps is no worse than DDP on the same samples",
        replicas.islands_end_as_plain,
        ("islands",),
    ),
    Claim(
        "scale",
        "docs/evidence.md",
        "DiLoCo's outer step (0.7, momentum 0.9) is ahead of that mean",
        replicas.an_outer_step_helps,
        ("islands",),
    ),
    Claim(
        "replicas",
        "docs/replicas.md",
        "Eight stacked replicas have three times the throughput of eight processes on one device",
        replicas.stacked_is_faster,
        ("stacked", "stacked-cpu"),
    ),
    Claim(
        "replicas",
        "docs/replicas.md",
        "Stacked replicas equal processes",
        asserted("within 1e-5 after three syncs"),
        tests=("tests/distributed/test_stacked_processes.py::test_every_optimizer_under_one_cycle",),
    ),
)
