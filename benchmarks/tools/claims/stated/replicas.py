"""What we say of replicas and of scale."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import replicas
from benchmarks.tools.claims.rules import asserted

__all__ = ["CLAIMS"]


CLAIMS = (
    Claim(
        "replicas",
        "docs/replicas.md",
        "Replicas on data of their own end below one large batch of the same samples",
        replicas.ahead_of_a_large_batch,
        ("zoo-replicas",),
    ),
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
