"""The live page: a server that reads what a run appends, and sends pages what to show of it. It listens to
this machine only, or, on another address, answers only requests that have the token."""

from __future__ import annotations

import hmac
import json
import secrets
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from hdet.report.page import content, open_histories, page

__all__ = ["Feed", "Server", "is_loopback"]

#: How often files are looked at, and how long a request waits for something new.
_LOOK_SECONDS, _WAIT_SECONDS = 0.25, 20.0
#: Drawn of a run, and the share of a core that drawing takes at most: the machine is one that trains.
_MOST_LINES, _SHARE = 300, 0.03
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host in _LOOPBACK


class Feed:
    """What the page shows of some files, made when it is asked for and something has changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._files = open_histories(paths, lines=_MOST_LINES)
        self._condition = threading.Condition()
        self._id, self._changes, self._state = secrets.token_hex(4), 0, ""
        #: What was made last, of which version, and when the next may be made.
        self._made, self._next_at = ("", ""), 0.0

    @property
    def version(self) -> str:
        """Of the files, as far as they have been read."""
        return f"{self._id}-{self._changes}"

    def look(self) -> None:
        """Read what is new, and wake the requests that wait for it."""
        with self._condition:
            state = repr([(file.read().about(), file.restarts) for file in self._files])
            if state != self._state:
                self._state, self._changes = state, self._changes + 1
                self._condition.notify_all()

    def answer(self, seen: str, wait: float = _WAIT_SECONDS) -> dict[str, str]:
        """The version after ``seen``, and what the page shows of it; waits until there is one."""
        with self._condition:
            if seen == self.version:
                self._condition.wait(wait)
            if seen == self.version:
                return {"version": seen, "content": ""}
            # A page that has not even seen what was made last gets that at once.
            while self._made[0] == seen and (left := self._next_at - time.monotonic()) > 0:
                self._condition.wait(left)
            if self._made[0] != self.version and time.monotonic() >= self._next_at:
                began = time.thread_time()
                self._made = self.version, content(self._files)
                self._next_at = time.monotonic() + (time.thread_time() - began) / _SHARE
            return {"version": self._made[0], "content": self._made[1]}


class Server:
    """Serves one page and what it shows.

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
            self.wfile.write(page([], live=True).encode())
        elif asked.path == "/content":
            body = json.dumps(watch.feed.answer(given.get("seen", ""))).encode()
            self._head("application/json", {"Content-Length": str(len(body))})
            self.wfile.write(body)
        else:
            self.send_error(404, "There are only / and /content")

    def _head(self, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(200)
        always = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        always["Referrer-Policy"] = "no-referrer"
        for name, value in {"Content-Type": kind, **always, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass
