"""The live page: a server that reads what a run appends, and sends it to pages that request it. It listens to
this machine only, or, on another address, answers only requests that have the token."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hdet.report.page import open_histories, pieces

__all__ = ["Feed", "Server", "is_loopback"]

#: How often files are looked at, and how long a request waits for something new.
_LOOK_SECONDS, _WAIT_SECONDS = 0.25, 20.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in _LOOPBACK


class Feed:
    """New lines of some files, numbered, for any number of pages.

    When a file starts again, or too many lines are held, a new epoch begins: a page that asks with an older
    one is given everything that is kept.
    """

    #: New lines that are held; more would fill the memory in a day of syncs.
    most_recent = 2000

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = open_histories(paths)
        self._condition = threading.Condition()
        self._recent: list[tuple[int, str]] = []
        self._id, self._epochs = secrets.token_hex(4), 0

    @property
    def epoch(self) -> str:
        """How long cursors stay valid."""
        return f"{self._id}-{self._epochs}"

    def look(self) -> None:
        """Read what is new, and wake the requests that wait for it."""
        with self._condition:
            restarts, before = self._restarts(), self._state()
            for i, file in enumerate(self._files):
                for line, _ in file.new():
                    self._recent.append((i, line))
                    if len(self._recent) > self.most_recent:
                        self._next_epoch()
            if self._restarts() != restarts:
                self._next_epoch()
            if self._state() != before:
                self._condition.notify_all()

    def _restarts(self) -> list[int]:
        return [file.restarts for file in self._files]

    def _state(self) -> tuple[str, int, list[bool]]:
        return self.epoch, len(self._recent), [file.about()["exists"] for file in self._files]

    def _next_epoch(self) -> None:
        self._recent, self._epochs = [], self._epochs + 1

    def answer(self, epoch: str, cursor: int, wait: float = _WAIT_SECONDS) -> dict[str, Any]:
        """What a page that has seen ``cursor`` lines of ``epoch`` has not seen; waits until there is some."""
        with self._condition:
            if epoch == self.epoch and cursor >= len(self._recent):
                self._condition.wait(wait)
            if epoch == self.epoch:
                lines: dict[int, list[str]] = {}
                for i, line in self._recent[cursor:]:
                    lines.setdefault(i, []).append(line)
            else:
                lines = {i: kept for i, file in enumerate(self._files) if (kept := file.lines())}
            runs = [file.about() for file in self._files]
            return {"epoch": self.epoch, "cursor": len(self._recent), "lines": lines, "runs": runs}


class Server:
    """Serves one page and its records.

    Args:
        paths: histories; they need not exist yet.
        host: the address to listen on.
        port: likewise; 0 takes a free one.
        token: what requests must have; empty asks for none, which is allowed on this machine's address only.
    """

    def __init__(
        self, paths: Sequence[Path], *, host: str = "127.0.0.1", port: int = 0, token: str = ""
    ) -> None:
        if not is_loopback(host) and not token:
            raise ValueError(f"Server: to listen on {host!r}, a token must be given")
        self.feed, self.token = Feed(paths), token
        self._http = ThreadingHTTPServer((host, port), _Handler)
        self._http.daemon_threads = True
        self._http.watch = self  # type: ignore[attr-defined]
        self._stopped = threading.Event()

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = str(self._http.server_address[0]), self._http.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def serve(self) -> None:
        """Until :meth:`stop`."""
        threading.Thread(target=self._http.serve_forever, args=(1.0,), daemon=True).start()
        try:
            while not self._stopped.wait(_LOOK_SECONDS):
                self.feed.look()
        finally:
            self._http.shutdown()
            self._http.server_close()

    def stop(self) -> None:
        """End :meth:`serve`."""
        self._stopped.set()

    def allows(self, host: str, token: str) -> bool:
        """With a token, only requests that have it. Without, only requests for one of this machine's own
        names, which a page that uses DNS rebinding does not send."""
        if self.token:
            return hmac.compare_digest(token.encode(), self.token.encode())
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        return is_loopback(name.strip("[]"))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"  # one answer a connection: none stays open
    timeout = 60

    def do_GET(self) -> None:
        watch: Server = self.server.watch  # type: ignore[attr-defined]
        asked = urlsplit(self.path)
        given = {key: values[0] for key, values in parse_qs(asked.query).items()}
        if not watch.allows(self.headers.get("Host", ""), given.get("token", "")):
            self.send_error(403, "Ask with the token that hdet watch printed")
        elif asked.path == "/":
            self._head("text/html; charset=utf-8")
            for piece in pieces({"live": True, "runs": []}):
                self.wfile.write(piece.encode())
        elif asked.path == "/records":
            cursor = int(given["cursor"]) if given.get("cursor", "").isdigit() else 0
            body = json.dumps(watch.feed.answer(given.get("epoch", ""), cursor)).encode()
            self._head("application/json", {"Content-Length": str(len(body))})
            self.wfile.write(body)
        else:
            self.send_error(404, "There are only / and /records")

    def _head(self, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(200)
        always = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        always["Referrer-Policy"] = "no-referrer"
        for name, value in {"Content-Type": kind, **always, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
