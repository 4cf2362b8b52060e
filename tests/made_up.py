"""Made-up results of experiments, in the form of their JSON files, with what a rule reads of them."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.plan import CONFIGURATIONS

CPU = {"cpu": "Cpu", "cores": 2, "device": "cpu"}
SEEDS = 4
LOW, HIGH, WARM = "Baseline-Low", "Baseline-High", "Warm-Init"
FULL, NO_AUTO, COLD = "HDET (full)", "HDET w/o auto-LR", "HDET w/o warm init"
BLOCKS = {"paper": (1e-4, 9e-4), "crash": (0.011, 0.1)}
By = dict[str, Any]


def rate(block: str, line: str) -> float | None:
    low, high = BLOCKS[block]
    return {"low": low, "high": high, "tuned": 0.01, "none": None}[CONFIGURATIONS[line].rate]


def a_run(block: str, line: str, seed: int, of: dict[str, By]) -> dict[str, Any]:
    """Losses are 1 + noise of the seed, the same for all lines, + what ``of`` says for the line."""
    crashes = of.get(f"{block}_crashes", {}).get(line, 0)
    noise = 0.1 * seed
    losses = {
        metric: None if (more := of.get(f"{block}_{metric}", {}).get(line, 0.0)) is None else 1 + noise + more
        for metric in ("train", "held_out")
    }
    step = of.get("crash_step", {}).get(line, 100) + seed if seed < crashes else None
    return {"seed": seed, **losses, "crashed": seed < crashes, "crash_step": step}


def a_table(task: str = "feed", crash_lr: float | None = 0.1, **of: By) -> dict[str, Any]:
    """As table1.json; ``paper_train={line: difference}``, ``crash_crashes={line: seeds}`` and so on."""
    lines = [(block, line) for block in BLOCKS for line in CONFIGURATIONS]
    runs: dict[Any, list[Any]] = {}
    for block, line in lines:
        for seed in range(SEEDS):
            lr, run = rate(block, line), a_run(block, line, seed, of)
            row = [CONFIGURATIONS[line].runs, lr, *run.values()]
            runs.setdefault((row[0], lr, seed), row)
    return {
        "task": task,
        "sweep": {"crash_lr": crash_lr},
        "blocks": [
            {
                "name": block,
                "high": BLOCKS[block][1],
                "rows": [{"configuration": line, "lr": rate(block, line)} for line in CONFIGURATIONS],
            }
            for block in BLOCKS
        ],
        "runs": {
            "header": ["configuration", "lr", "seed", "train", "held_out", "crashed", "crash_step"],
            "rows": list(runs.values()),
        },
    }


def a_figure(task: str = "feed", early: By | None = None, late: By | None = None) -> dict[str, Any]:
    """As figure2.json, ten points a curve: the first is ``early`` higher, the others ``late``."""

    def losses(line: str) -> list[float]:
        return [1 + (early or {}).get(line, 0.0), *[1 + (late or {}).get(line, 0.0)] * 9]

    curves = [
        {
            "configuration": line,
            "runs": [{"seed": seed, "final": 1.0, "loss": losses(line)} for seed in range(SEEDS)],
        }
        for line in (LOW, HIGH, WARM, FULL)
    ]
    return {"task": task, "blocks": [{"name": "paper", "high": 9e-4, "curves": curves}]}


def rates(
    p: float = 1.0,
    any_p: float = 1.0,
    moved: float = 0.01,
    task: str = "feed",
) -> Any:
    """As figure3.json, one block, one group."""
    order = {
        "published": {"both": 1, "of": 5, "p": p},
        "any_order": {"p": any_p},
        "median_abs_log_factor": {"transformer": moved},
    }
    return {"task": task, "blocks": [{"name": "paper", "high": 9e-4, "order": order}]}


def no_rates() -> Any:
    return {**rates(), "blocks": [{"name": "paper", "high": 9e-4, "order": None}]}


def replicas(*rows: tuple[float, float, float, float]) -> dict[str, Any]:
    """As replicas.json: regret of the published controller, of plain, mean decision, its deviation."""
    settings = {"steps": 1000, "control_after": 0.1, "sync_every": 10, "seeds": 3}
    return {
        "settings": settings,
        "rows": [
            {
                "replicas": 2**k,
                "regret_percent": {
                    "published": {"mean": ours, "half_width": 0.1},
                    "plain": {"mean": plain, "half_width": 0.1},
                },
                "decision": {"published": {"mean_percent": mean, "deviation_percent": deviation}},
            }
            for k, (ours, plain, mean, deviation) in enumerate(rows, 1)
        ],
    }


def published(difference: float = 0.0, sweep_lr: float = 1e-3) -> dict[str, Any]:
    """As regret-cpu.json, one task, with the published controller beside plain runs of the sweep."""
    rows = [
        ["digits", "adamw", arm, lr, "onecycle", seed, 1 + 0.1 * seed + more]
        for arm, lr, more in (("published", 1e-3, difference), ("sweep", sweep_lr, 0.0))
        for seed in range(SEEDS)
    ]
    header = ["workload", "optimizer", "arm", "lr", "schedule", "seed", "held_out"]
    pairs = [{"workload": "digits", "optimizer": "adamw"}]
    return {"pairs": pairs, "runs": {"header": header, "rows": rows}}


def regret(
    mean: float = 0.0, worst: float = 0.0, behind: int = 0, diverged: int = 0, misled: tuple[float, ...] = ()
) -> dict[str, Any]:
    return {
        "machine": CPU,
        "overall": {
            "autolr": {"mean": mean, "worst": worst},
            **{f"autolr@{k}": {"mean": one} for k, one in enumerate(misled)},
        },
        "goals": {
            "mean regret of AutoLR at most 0.3 %": {"met": mean <= 0.3},
            "worst at most 1 %": {"met": worst <= 1},
            "at least: mean 0.7 %": {"met": mean <= 0.7},
            "at least: worst 2 %": {"met": worst <= 2},
            "never diverges": {"measured": diverged, "of": 9, "met": not diverged},
            "ahead of every learning-rate-free peer on every workload": {"measured": behind, "of": 9},
        },
    }


def scalars(*recovered: float, at_once: float = 0.0) -> dict[str, Any]:
    worst, third = min(recovered, default=0.0), sorted(recovered)[1:2]
    in_turn = [2.0, 2.1, 2.3]
    return {
        "tasks": [
            {"task": str(k), "starts": [{"recovered": {"mean": one}}, {"recovered": {"mean": one + 5}}]}
            for k, one in enumerate(recovered)
        ],
        "four": {
            "arms": [
                {"arm": "one after the other", "losses": in_turn},
                {"arm": "all at once", "losses": [loss + at_once for loss in in_turn]},
            ]
        },
        "goals": {
            "each recovers at least 80 %": {"measured": worst, "worst_on": "dropout", "met": worst >= 80},
            "at least: three of the four recover 50 %": {"measured": sum(third), "met": sum(third) >= 50},
        },
    }


def measured(**rows: Any) -> dict[str, Any]:
    return {"machine": CPU, **rows}


def training(sync_steps: float) -> dict[str, Any]:
    return measured(rows=[{"part": "training", "sync_steps": sync_steps}])


def calls(*ratios: float) -> dict[str, Any]:
    return measured(rows=[{"part": "scheduler call", "ratio": ratio} for ratio in ratios])


def waits(*never: bool) -> dict[str, Any]:
    rows = [{"scheduler": "OneCycleAutoLR", "never_waits": one, "detector_works": True} for one in never]
    return measured(rows=rows)


def averaging(*rows: tuple[float, float]) -> dict[str, Any]:
    """Ratio to the limit, and time beside 10 ms of the better of both others."""
    return measured(
        rows=[
            {
                "ratio_to_limit": {"hdet": ratio},
                "milliseconds": {"hdet": ms, "average_parameters": 10.0, "all_reduce per tensor": 99.0},
            }
            for ratio, ms in rows
        ]
    )


def wall_clock(*rows: tuple[float, float]) -> dict[str, Any]:
    return measured(
        rows=[
            {"overhead": whole, "overhead_in_calls": within, "optimizer": "SGD", "steps": 9}
            for whole, within in rows
        ]
    )


def goals(**met: bool) -> dict[str, Any]:
    return measured(goals={name: {"measured": 1.0, "met": one} for name, one in met.items()})


def overhead(hundred: bool, thousand: bool) -> dict[str, Any]:
    return goals(**{"overhead, T=100": hundred, "overhead, T=1000": thousand})


def drawing(*shares: float) -> dict[str, Any]:
    return {"rows": [{"source": "stream", "scale": "cpu", "share": share} for share in shares]}
