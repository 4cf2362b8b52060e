"""What we say of AutoLR beside tuned sweeps, peers, and problems of others."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import rates

__all__ = ["CLAIMS"]

_TABLES = ("table1", "table1-kuairand", "pretraining")
_REGRET = ("regret", "regret-cpu")

CLAIMS = (
    Claim(
        "sweep",
        "README.md",
        "AutoLR ends 2 % above a sweep with the same choice of weights on average and 5 % at worst (or 4 and "
        "10 %), ahead of the default rate and every peer",
        rates.near_the_sweep_with_its_choice,
        ("excess", "excess-optimizers"),
    ),
    Claim(
        "zoo",
        "docs/evidence.md",
        "On families of tasks that no constant was fitted to AutoLR is near the tuned sweep, loses no run, "
        "and is ahead of a default rate",
        rates.near_the_sweep_of_the_zoo,
        ("zoo",),
    ),
    Claim(
        "zoo",
        "docs/evidence.md",
        "Each constant of AutoLR pays: 0.3 % on average, or a run that is not lost",
        rates.each_constant_pays,
        ("zoo-ablation",),
    ),
    Claim(
        "zoo",
        "docs/evidence.md",
        "No other rule that was tried chooses weights that are better by half a point",
        rates.chooses_as_well_as_any,
        ("zoo-choice",),
    ),
    Claim(
        "others",
        "docs/evidence.md",
        "One run of AutoLR solves what a search of AdamW's rate and betas does in 30 trials, or in 10",
        rates.solves_as_ten_trials_do,
        ("lightbench",),
    ),
    Claim(
        "others",
        "docs/evidence.md",
        "On DeepOBS's quadratic_deep AutoLR is within the error of published tuned runs, or below",
        rates.reaches_published,
        ("deepobs",),
    ),
    Claim(
        "others",
        "docs/evidence/pretrained.md",
        "One run that is given no rate equals the rate and dropout that Yield-BERT's authors published",
        rates.equals_the_published_setting,
        ("pretrained",),
    ),
    Claim(
        "zoo",
        "docs/evidence.md",
        "`hdet.find` is nearer to the sweep's rate than a range test or a default",
        rates.finds_nearer_than_others,
        ("zoo-finders",),
    ),
    Claim(
        "sweep",
        "docs/evidence.md",
        "AutoLR, given no rate, loses to a tuned sweep 0.3 % on average and 1 % at worst (or 0.7 and 2 %)",
        rates.near_the_sweep,
        _REGRET,
    ),
    Claim(
        "peers",
        "docs/evidence.md",
        "AutoLR is ahead of what else asks for no rate",
        rates.ahead_of_peers,
        _REGRET,
    ),
    Claim("sweep", "docs/evidence.md", "AutoLR never diverges", rates.never_diverges, _REGRET),
    Claim(
        "sweep",
        "README.md",
        "The optimizer's own rate is not read",
        rates.optimizers_rate_is_not_read,
        _REGRET,
        ("tests/unit/autolr/test_auto_lr.py::test_no_learning_rate_is_read",),
    ),
    Claim(
        "sweep",
        "docs/paper.md",
        "AutoLR ends about where the tuned baseline does (not above it)",
        rates.as_good_as_tuned,
        _TABLES,
    ),
)
