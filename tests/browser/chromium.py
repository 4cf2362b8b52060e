"""A real browser, driven by its own protocol over a pipe: Debian's Chromium, without a head or a driver.

``python -m tests.browser.chromium PAGE.html PICTURE.png [WIDTH [dark]]`` takes a picture to look at.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    *(
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-pipe",
    ),
    *("--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars"),
    *("--force-color-profile=srgb", "--mute-audio", "--disable-sync"),
)


class Browser:
    """One Chromium; :meth:`open` gives a tab."""

    def __init__(self, folder: str) -> None:
        assert FOUND
        # The protocol reads file descriptor 3 and writes to 4; messages end in a zero byte.
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        given = " ".join([*_FLAGS, f"--user-data-dir={folder}", "about:blank"])
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {FOUND} {given} 3<&{read_commands} 4>&{write_answers}"],
            pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_commands)
        os.close(write_answers)
        self._number = 0
        self._rest = b""
        self._tabs: dict[str, Tab] = {}

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def open(
        self, url: str, *, width: int = 1280, height: int = 900, phone: bool = False, dark: bool = False
    ) -> Tab:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session, target)
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        tab.call("Emulation.setEmulatedMedia", features=[scheme])
        tab.resize(width, height, phone=phone)
        tab.call("Page.navigate", url=url)
        return tab

    def call(self, method: str, session: str = "", *, seconds: float = 60.0, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + seconds
        while True:
            for answer in self._hear(until - time.monotonic()):
                if answer.get("id") == self._number:
                    if "error" in answer:
                        raise RuntimeError(f"{method}: {answer['error']}")
                    return answer["result"]

    def _hear(self, seconds: float) -> list[dict[str, Any]]:
        """Messages that have arrived; events go to their tabs."""
        if seconds <= 0 or not select.select([self._answers], [], [], seconds)[0]:
            raise TimeoutError("the browser does not answer")
        read = os.read(self._answers, 1 << 20)
        if not read:
            raise RuntimeError("the browser has ended")
        *whole, self._rest = (self._rest + read).split(b"\0")
        messages = [json.loads(message) for message in whole]
        for message in messages:
            if "method" in message and message.get("sessionId") in self._tabs:
                self._tabs[message["sessionId"]].hear(message["method"], message["params"])
        return messages


class Tab:
    """One page; ``errors`` is what it complained of."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target
        self.errors: list[str] = []

    def hear(self, method: str, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif method == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value")) for arg in said["args"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")

    def call(self, method: str, **parameters: Any) -> Any:
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def run(self, expression: str) -> Any:
        """The value of an expression; of a promise, what it comes to."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(str(done["exceptionDetails"].get("exception", {}).get("description")))
        return done["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> float:
        """Until it is true; how long that took."""
        began = time.monotonic()
        while True:
            try:
                if self.run(f"Boolean({expression})"):
                    return time.monotonic() - began
            except RuntimeError:  # not loaded yet
                pass
            if time.monotonic() - began > seconds:
                raise TimeoutError(f"not true after {seconds} s: {expression}; {self.errors}")
            time.sleep(0.05)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def browser() -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="hdet-browser-", ignore_cleanup_errors=True) as folder:
        made = Browser(folder)
        try:
            yield made
        finally:
            made.close()


if __name__ == "__main__":
    page, picture, *rest = sys.argv[1:]
    wide = int(rest[0]) if rest else 1280
    with browser() as chromium:
        url = page if "://" in page else Path(page).resolve().as_uri()
        tab = chromium.open(url, width=wide, height=900, phone=wide < 600, dark="dark" in rest)
        tab.wait_for("document.body.dataset.drawn")
        time.sleep(1)
        tab.picture(Path(picture))
        print(*tab.errors, sep="\n")
