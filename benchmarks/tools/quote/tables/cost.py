"""What a step, a sync and a whole run cost, as tables."""

from __future__ import annotations

from typing import Any

__all__ = ["autolr", "converge", "step"]


def converge(result: dict[str, Any]) -> str:
    """Milliseconds to average the weights, in each way."""
    ways = list(result["rows"][0]["milliseconds"])
    lines = [
        "| ranks | weights | " + " | ".join(ways) + " | extra memory |",
        "|---" * (len(ways) + 3) + "|",
    ]
    for row in result["rows"]:
        ms, ratio = row["milliseconds"], row["ratio_to_limit"]
        cells = [f"{ms[way]:.0f} ms" + (f", ×{ratio[way]:.2f}" if ratio[way] != 1 else "") for way in ways]
        size = f"{row['megabytes']:.0f} MB in {row['tensors']:,} tensors"
        lines.append(
            f"| gloo ×{row['ranks']} | {size} | {' | '.join(cells)} | {row['extra_megabytes']:.0f} MB |"
        )
    return "\n".join(lines)


def step(result: dict[str, Any]) -> str:
    """A call beside OneCycleLR, and what that adds to a step of DDP."""
    lines = [
        "| `step(loss)` between syncs | OneCycleLR | hdet | ratio (quartiles) | hooks add |",
        "|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        if row["part"] == "scheduler call":
            low, high = row["ratio_iqr"]
            moved = "before" if row["interval"] == "first" else "after"
            lines.append(
                f"| {row['optimizer']}, {row['groups']} group(s), {moved} auto-LR has moved | "
                f"{row['one_cycle_us']:.0f} µs | {row['hdet_us']:.0f} µs | "
                f"×{row['ratio']:.2f} ({low:.2f}–{high:.2f}) | {row['hooks_us']:.0f} µs |"
            )
    training = next(row for row in result["rows"] if row["part"] == "training")
    lines += [
        "",
        f"One DDP step ({training['parameters'] / 1e6:.1f} M parameters, gloo ×{training['replicas']}) takes "
        f"{training['step_ms']:.0f} ms, a sync {training['sync_ms']:.1f} ms; calls and hooks add "
        f"{training['added_us']:.0f} µs a step. Cost over plain DDP, by these parts: "
        f"**{training['overhead_by_parts_T100']:.2%}** at T = 100, "
        f"**{training['overhead_by_parts_T1000']:.2%}** at T = 1000.",
    ]
    waits = [row for row in result["rows"] if row.get("scheduler") == "OneCycleAutoLR"]
    if waits:
        never = sum(row["never_waits"] for row in waits)
        lines[-1] += f" No wait for the device between syncs in {never} of {len(waits)} set-ups."
    return "\n".join(lines)


def autolr(result: dict[str, Any]) -> str:
    """Whole runs of AutoLR beside plain ones."""
    lines = ["| run | plain step | more wall-clock | extra memory |", "|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(
            f"| {row['workload']}, {row['parameters'] / 1e3:.0f} k parameters, {row['optimizer']}, "
            f"{row['steps']:,} steps | {row['step_ms']:.1f} ms | {100 * row['overhead']:.1f} % "
            f"(in its calls {100 * row['overhead_in_calls']:.1f} %) | "
            f"{row['extra_memory_in_weights']:.1f} × the weights |"
        )
    for row in result.get("ddp", []):
        for arm, more in row["overhead"].items():
            lines.append(
                f"| {arm} in DDP on two gloo ranks, {row['steps']:,} steps | {row['step_ms']:.1f} ms | "
                f"{100 * more:.1f} % | |".replace("-", "−")
            )
    for row in result.get("quiet", []):
        lines.append(
            f"| a step between windows, groups: {row['groups']} | – | {row['autolr_us']:.0f} µs, "
            f"OneCycleLR {row['one_cycle_us']:.0f} µs (×{row['ratio']:.1f}) | |"
        )
    return "\n".join(lines)
