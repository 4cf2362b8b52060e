"""What a whole run costs, as a table."""

from __future__ import annotations

from typing import Any

__all__ = ["autolr"]


def autolr(result: dict[str, Any]) -> str:
    """Whole runs of AutoLR beside plain ones."""
    lines = ["| run | plain step | more wall-clock | extra memory |", "|---|---|---|---|"]
    for row in result["rows"]:
        lines.append(
            f"| {row['workload']}, {row['parameters'] / 1e3:.0f} k parameters, {row['optimizer']}, "
            f"{row['steps']:,} steps | {row['step_ms']:.1f} ms | {100 * row['overhead']:.1f} % "
            f"({row['passes']} passes of the probe: {100 * row['overhead_in_passes']:.1f} %) | "
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
