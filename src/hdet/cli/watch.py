"""``hdet watch``: a run as it trains, in a browser, in the terminal, or as JSON for a script."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import as_line

__all__ = ["watch"]


def watch(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Histories (.jsonl); they need not exist yet.", show_default=False
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
        str, typer.Option(help="What a browser must know.", show_default="made up where one is needed")
    ] = "",
) -> None:
    """Follow runs while they train: a page at 127.0.0.1, lines in the terminal, or JSON for scripts."""
    if plain and as_json:
        raise typer.BadParameter("--plain and --json exclude each other; give one of them")
    if once and not (plain or as_json):
        raise typer.BadParameter("--once prints and ends: give --plain or --json with it")
    try:
        if plain or as_json:
            _lines(runs, as_json=as_json, once=once)
        else:
            _serve(runs, host, port, token)
    except KeyboardInterrupt:
        typer.echo("hdet: stopped watching; the run goes on, and `hdet report` makes a page of it", err=True)
        raise typer.Exit(130) from None


def _serve(runs: list[Path], host: str, port: int, token: str) -> None:
    import secrets

    from hdet.report.watch import Watch, is_loopback

    if not token and not is_loopback(host):
        token = secrets.token_urlsafe(16)
    try:
        server = Watch(runs, host=host, port=port, token=token)
    except OSError as error:
        raise typer.BadParameter(
            f"--host and --port must be free, got {host}:{port} ({error.strerror}); --port 0 takes a free one"
        ) from error
    typer.echo(f"Watching {', '.join(map(str, runs))} at {server.url} (Ctrl-C to stop)")
    server.serve()


def _lines(runs: list[Path], *, as_json: bool, once: bool) -> None:
    from hdet.report.alerts import Alert, Alerts
    from hdet.report.source import Source
    from hdet.report.terminal import drawn

    followed = [(Source(path, limit=200), Alerts()) for path in runs]
    seen: list[list[Alert]] = [[] for _ in runs]
    first = True
    while True:
        news = False
        for (source, alerts), told in zip(followed, seen, strict=True):
            for line, record in source.new():
                news = True
                found = alerts.see(record)
                told[:] = [*told, *found][-20:]
                if as_json:
                    typer.echo(line)
                    for alert in found:
                        typer.echo(as_line(alert.as_line(source.name)))
        if not as_json and (news or first):
            if sys.stdout.isatty() and not once:
                typer.echo("\x1b[2J\x1b[H", nl=False)
            for (source, _), told in zip(followed, seen, strict=True):
                typer.echo(drawn(source.name, source.records(), told))
        if once:
            return
        first = False
        time.sleep(0.5)
