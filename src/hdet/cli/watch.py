"""``hdet watch``: a run as it trains, in a browser, in the terminal, or as JSON for a script."""

from __future__ import annotations

import math
import secrets
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hdet.cli.show import as_line, histories

if TYPE_CHECKING:
    from hdet.report.alerts import Alert

__all__ = ["drawn", "sparkline", "watch"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_ALERTS = 5


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN", help="Histories (.jsonl); they need not exist yet.", show_default=False
        ),
    ],
    plain: Annotated[
        bool, typer.Option("--plain", help="Draw in the terminal instead of a browser.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print records and alerts as JSON lines, as they come.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="With --plain or --json: print what is there, and end.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on; any but this machine's own asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")
    ] = 8765,
    token: Annotated[
        str, typer.Option(help="What a browser must send.", show_default="a random one where needed")
    ] = "",
) -> None:
    """Follow runs while they train, in a browser or the terminal.

    A page at 127.0.0.1, lines with --plain, or JSON for scripts with --json.
    """
    if plain and as_json:
        raise typer.BadParameter("--plain and --json exclude each other; give one of them")
    if once and not (plain or as_json):
        raise typer.BadParameter("--once prints and ends: give --plain or --json with it")
    runs = histories(runs, may_come=True)
    try:
        if plain or as_json:
            _print(runs, as_json=as_json, once=once)
        else:
            _serve(runs, host, port, token)
    except KeyboardInterrupt:
        typer.echo("hdet: stopped watching; the run goes on, and `hdet report` makes a page of it", err=True)
        raise typer.Exit(130) from None


def _serve(runs: list[Path], host: str, port: int, token: str) -> None:
    from hdet.report.server import Server, is_loopback

    try:
        server = Server(
            runs,
            host=host,
            port=port,
            token=token or ("" if is_loopback(host) else secrets.token_urlsafe(16)),
        )
    except OSError as error:
        raise typer.BadParameter(
            f"--host and --port must be free, got {host}:{port} ({error.strerror}); --port 0 takes a free one"
        ) from error
    typer.echo(f"Watching {', '.join(map(str, runs))} at {server.url} (Ctrl-C to stop)")
    server.serve()


def _print(runs: list[Path], *, as_json: bool, once: bool) -> None:
    from hdet.report.alerts import Alerts
    from hdet.report.records import HistoryFile

    followed = [(HistoryFile(path, limit=200), Alerts(), list[Any]()) for path in runs]
    changed = True
    while True:
        for file, alerts, seen in followed:
            for line, record in file.new():
                changed = True
                new = alerts.see(record)
                seen[:] = [*seen, *new][-_SHOWN_ALERTS:]
                if as_json:
                    typer.echo(line)
                    for one in new:
                        about = {"step": one.step, "level": one.level, "text": one.text}
                        typer.echo(as_line({"kind": "alert", "run": file.name, "alert": one.kind, **about}))
        if changed and not as_json:
            if sys.stdout.isatty() and not once:
                typer.echo("\x1b[2J\x1b[H", nl=False)
            width = max(40, shutil.get_terminal_size().columns)
            for file, _, seen in followed:
                typer.echo(drawn(file.name, file.records(), seen, width))
        if once:
            return
        changed = False
        time.sleep(0.5)


def drawn(name: str, lines: Sequence[dict[str, Any]], alerts: Sequence[Alert], width: int = 78) -> str:
    """A run as text: the verdict, rates and losses as lines of blocks, alerts."""
    from hdet.report.verdict import as_float, facts_of, held_out, is_rate, mean_of, number, sentence

    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)

    def wrapped(text: str, indent: int) -> list[str]:
        wrap.initial_indent, wrap.subsequent_indent = " " * indent, " " * (indent + 2)
        return wrap.wrap(text)

    syncs = [line for line in lines if "kind" not in line]
    rates = [
        max(
            (
                as_float(v.get("base_before"))
                for v in sync.get("hyperparameters") or []
                if is_rate(v.get("name"))
            ),
            default=math.nan,
        )
        for sync in syncs
    ]
    losses = [held_out(sync) for sync in syncs]
    if not any(map(math.isfinite, losses)):  # no probe
        losses = [mean_of(sync.get("losses")) for sync in syncs]
    rows = wrapped(f"{name}: {sentence(facts_of(lines))}", 0)
    if syncs:
        logs = [math.log(rate) if rate > 0 else math.nan for rate in rates]
        rows.append(f"  rate  {sparkline(logs, width - 20)}  {number(rates[-1])}")
        rows.append(f"  loss  {sparkline(losses, width - 20)}  {number(losses[-1])}")
    for alert in alerts:
        step = "" if alert.step is None else f"step {alert.step:,}: "
        rows += wrapped(f"{alert.level}: {step}{alert.kind}: {alert.text}", 2)
    return "\n".join(rows)


def sparkline(values: Sequence[float], width: int = 50) -> str:
    """A line of blocks, low to high; what is not finite is a gap.

    >>> sparkline([1, 2, math.nan, 8])
    '▁▂ █'
    """
    every = max(1, math.ceil(len(values) / width))
    shown = values[(len(values) - 1) % every :: every]
    known = [value for value in shown if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    return "".join(_BLOCKS[round((v - low) / step)] if math.isfinite(v) else " " for v in shown)
