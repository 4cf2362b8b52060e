"""The page, live: a server that reads what a run appends and hands it on when asked. For this machine alone,
unless it is told to listen elsewhere, and then only to who has the token."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hdet.report.page import pieces, sources

__all__ = ["Feed", "Watch", "is_loopback"]

#: How often files are looked at, and how long a question waits for an answer.
_LOOK_SECONDS, _WAIT_SECONDS = 0.25, 20.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in _LOOPBACK


class Feed:
    """Lines of some files as they come, numbered, for any number of pages.

    A file that begins anew, and a thinned one that has to be thinned further, begin a new epoch: whoever asks
    with another one is given everything that is kept.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._sources = sources(paths)
        self._condition = threading.Condition()
        self._recent: list[tuple[int, str]] = []
        self._server = secrets.token_hex(4)
        self._epochs = 0

    #: Lines after which pages are given what is kept instead: else a day of syncs would stay in memory.
    most_recent = 2000

    def look(self) -> None:
        """Read what is new, and wake who waits for it."""
        with self._condition:
            before = self._state()
            for i, source in enumerate(self._sources):
                for line, _ in source.new():
                    self._recent.append((i, line))
                    if len(self._recent) > self.most_recent:
                        self._begin_anew()
            if before[1] != self._state()[1]:
                self._begin_anew()
            if before != self._state():
                self._condition.notify_all()

    def _state(self) -> tuple[tuple[str, int], list[int], list[bool]]:
        return (
            (self.epoch, len(self._recent)),
            [source.restarts for source in self._sources],
            [source.exists for source in self._sources],
        )

    def _begin_anew(self) -> None:
        self._recent, self._epochs = [], self._epochs + 1

    @property
    def epoch(self) -> str:
        """Until when cursors count."""
        return f"{self._server}-{self._epochs}"

    def answer(self, epoch: str, cursor: int, wait: float = _WAIT_SECONDS) -> dict[str, Any]:
        """What someone who has seen ``cursor`` lines of ``epoch`` has not seen; waits until there is some."""
        until = time.monotonic() + wait
        with self._condition:
            if epoch == self.epoch and cursor >= len(self._recent):
                self._condition.wait(until - time.monotonic())
            lines: dict[int, list[str]] = {}
            if epoch == self.epoch:
                for i, line in self._recent[cursor:]:
                    lines.setdefault(i, []).append(line)
            else:
                lines = {i: source.lines() for i, source in enumerate(self._sources) if source.lines()}
            told = {"epoch": self.epoch, "cursor": len(self._recent), "lines": lines}
            return {**told, "runs": [source.about() for source in self._sources]}


class Watch:
    """Serves one page and its records.

    Args:
        paths: histories; they need not exist yet.
        host: what to listen on.
        port: likewise; 0 takes any that is free.
        token: what whoever asks must know; empty asks for nothing, which only this machine may have.
    """

    def __init__(
        self, paths: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str = ""
    ) -> None:
        if not is_loopback(host) and not token:
            raise ValueError(
                f"Watch: a token must be given to listen on another host, got {host!r} without one"
            )
        self.feed = Feed(paths)
        self._token, self._host = token, host
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self._stopped = threading.Event()

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self._server.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/" + (f"?token={self._token}" if self._token else "")

    def serve(self, on_look: Callable[[], None] = lambda: None) -> None:
        """Until :meth:`stop`; ``on_look`` is called after every look at the files."""
        thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 1.0}, daemon=True
        )
        thread.start()
        try:
            while not self._stopped.wait(_LOOK_SECONDS):
                self.feed.look()
                on_look()
        finally:
            self._server.shutdown()
            self._server.server_close()

    def stop(self) -> None:
        """End :meth:`serve`."""
        self._stopped.set()

    def _handler(watch) -> type[BaseHTTPRequestHandler]:  # self is the request's
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.0"  # one answer a connection: nothing is left waiting
            timeout = 60

            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                given = {key: values[0] for key, values in parse_qs(asked.query).items()}
                if not watch._may(self.headers.get("Host", ""), given.get("token", "")):
                    self.send_error(403, "Ask with the token that hdet watch printed")
                elif asked.path == "/":
                    self._page()
                elif asked.path == "/records":
                    cursor = int(given["cursor"]) if given.get("cursor", "").isdigit() else 0
                    self._json(watch.feed.answer(given.get("epoch", ""), cursor))
                else:
                    self.send_error(404, "Only / and /records are here")

            def _page(self) -> None:
                self._head("text/html; charset=utf-8")
                for piece in pieces({"live": True, "runs": []}):
                    self.wfile.write(piece.encode())

            def _json(self, answer: dict[str, Any]) -> None:
                body = json.dumps(answer).encode()
                self._head("application/json", len(body))
                self.wfile.write(body)

            def _head(self, kind: str, length: int | None = None) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Referrer-Policy", "no-referrer")
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _may(self, host: str, token: str) -> bool:
        """The token where there is one; else this machine by one of its own names: a page of elsewhere whose
        name was made to lead here (DNS rebinding) asks by another."""
        if self._token:
            return hmac.compare_digest(token.encode(), self._token.encode())
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name.strip("[]") in _LOOPBACK
