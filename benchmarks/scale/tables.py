"""What ``scale`` has found, as tables: measured here first, then what follows from the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["markdown", "table"]

_Sheet = tuple[str, Sequence[str], list[list[str]]]


def _sheets(result: Mapping[str, Any]) -> list[_Sheet]:
    seen = result["measured"]
    return [
        (
            "Measured here: seconds, predicted from a fit on other sizes",
            ["gloo", "fitted", "what", "predicted", "measured", "error"],
            [row for link in seen["links"] for row in _of_link(link)],
        ),
        (
            "Measured here: memory beyond training, bytes a weight",
            ["door", "optimizer", "weights", "predicted", "counted", "error"],
            [_of_door(row) for row in seen["memory"]],
        ),
        (
            "Measured here: memory of the buckets, ms of one mean of bf16 weights",
            ["gloo", "weights", *_memories(seen)],
            [_of_buckets(link, _memories(seen)) for link in seen["links"]],
        ),
        (
            "Extrapolated: seconds of a step and of a converge",
            [
                *("model", "link", "replicas (devices)", "step", "its gradient", "converge"),
                *("share of steps, T = 1000", "own gradients, T = 50"),
            ],
            [_of_scale(row) for row in result["extrapolated"]["rows"]],
        ),
        (
            "Extrapolated: gigabytes on each device (with the host)",
            ["model", "devices a replica", "weights", "training", "AutoLR"],
            [row for one in result["extrapolated"]["memory"] for row in _of_memory(one)],
        ),
    ]


def _of_link(link: Mapping[str, Any]) -> list[list[str]]:
    fitted = f"{link['gigabytes_per_second']:.2f} GB/s, {link['microseconds_per_message']:.0f} µs"
    named = [(f"{row['bytes'] / 2**20:g} MB", row) for row in link["predicted"]]
    real = link["converge"]
    named.append((f"converge of {real['weights'] / 1e6:.1f} M weights, {real['tensors']} tensors", real))
    return [[f"×{link['ranks']}", fitted, what, *_prediction(row)] for what, row in named]


def _prediction(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['predicted_ms']:.1f} ms", f"{row['measured_ms']:.1f} ms", f"{100 * row['error']:+.0f} %"]


def _of_door(row: Mapping[str, Any]) -> list[str]:
    return [
        row["door"],
        row["optimizer"],
        row["dtype"],
        f"{row['predicted_bytes_a_weight']:.2f}",
        f"{row['counted_bytes_a_weight']:.2f}",
        f"{100 * row['error']:+.1f} %",
    ]


def _memories(seen: Mapping[str, Any]) -> list[str]:
    return [f"{size} MB" for size in seen["links"][0]["buckets"]["milliseconds"]]


def _of_buckets(link: Mapping[str, Any], memories: Sequence[str]) -> list[str]:
    found = link["buckets"]
    times = [f"{found['milliseconds'][size.split()[0]]:.0f}" for size in memories]
    return [f"×{link['ranks']}", f"{found['weights'] / 1e6:.1f} M", *times]


def _of_scale(row: Mapping[str, Any]) -> list[str]:
    return [
        row["model"],
        row["link"],
        f"{row['replicas']} ({row['devices']})",
        _seconds(row["step_seconds"]),
        _seconds(row["gradient_seconds"]),
        _seconds(row["converge_seconds"]),
        f"{100 * row['converge_share_of_step']:.2f} %",
        f"{100 * row['own_gradients_share_of_step']:.1f} %",
    ]


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 100 else f"{value:.0f} s"


def _of_memory(one: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            one["model"],
            str(one["devices_a_replica"]),
            dtype,
            f"{one[dtype]['training_gigabytes']:.1f}",
            f"{one[dtype]['autolr_device_gigabytes']:.1f} (+{one[dtype]['autolr_host_gigabytes']:.1f})",
        ]
        for dtype in ("float32", "bfloat16")
    ]


def table(result: dict[str, Any]) -> Group:
    """All of it for a screen."""
    from rich.console import Group
    from rich.table import Table

    def sheet(title: str, headings: Sequence[str], rows: list[list[str]]) -> Table:
        view = Table(*headings, title=title)
        for row in rows:
            view.add_row(*row)
        return view

    return Group(*(sheet(*parts) for parts in _sheets(result)))


def markdown(result: dict[str, Any]) -> str:
    """The same for a document, with what was assumed."""
    join: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    parts = []
    for title, headings, rows in _sheets(result):
        parts += [f"**{title}**", "", join(headings), "|---" * len(headings) + "|", *map(join, rows), ""]
    assumed = result["extrapolated"]["assumed"]
    links = "; ".join(
        f"{link['name']} {link['gigabytes_per_second']:g} GB/s and {link['microseconds_per_message']:g} µs a "
        f"message for each device ({link['told']})"
        for link in assumed["links"]
    )
    parts.append(
        "Extrapolated is all that is not said to be measured; nobody has run it. Links as stated, not "
        f"measured: {links}. A device computes {assumed['operations_per_second'] / 1e12:g}e12 operations a "
        f"second on {assumed['tokens_a_device']:,} tokens a step; a replica has as many devices as fit AdamW "
        f"in float32 into {assumed['device_bytes'] / 1e9:g} GB each, and shards of it meet their own copies. "
        "A step is the longer of what is computed and what its bf16 gradient takes to travel; on "
        "gradients of their own replicas send weights and AdamW's moments instead, over what is computed. "
        "The ring's latency grows with the replicas: libraries that reduce by trees do better there."
    )
    return "\n".join(parts)
