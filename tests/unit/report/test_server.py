"""Who is answered, with what, and what watching costs. tests/browser has the page that asks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from hdet.report import server
from hdet.report.server import Feed, Server
from tests.browser.histories import opening, save, sync


@contextmanager
def serving(watch: Server) -> Iterator[str]:
    thread = threading.Thread(target=watch.serve, daemon=True)
    thread.start()
    try:
        yield watch.url
    finally:
        watch.stop()
        thread.join(10)


def ask(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""


def test_it_listens_to_this_machine_alone(tmp_path: Path) -> None:
    watch = Server([tmp_path / "run.jsonl"])
    with serving(watch) as url:
        assert url.startswith("http://127.0.0.1:")
        another = Server([tmp_path / "run.jsonl"])
        another._http.server_close()
        assert another.url != url, "on any port that is free"
        assert ask(url)[0] == 200
        assert ask(url + "elsewhere")[0] == 404
        # A page of another name that was made to resolve to this machine.
        assert ask(url, Host="evil.example")[0] == 403
        assert ask(url + "content", Host="evil.example:80")[0] == 403


def test_elsewhere_it_asks_for_a_token(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a token must be given"):
        Server([tmp_path / "run.jsonl"], host="0.0.0.0")
    watch = Server([tmp_path / "run.jsonl"], host="127.0.0.1", token="secret")
    with serving(watch) as url:
        assert url.endswith("/?token=secret")
        assert ask(url)[0] == 200
        assert ask(url.replace("secret", "guess"))[0] == 403
        assert ask(url.split("?")[0])[0] == 403
        assert ask(url.split("?")[0] + "content?token=")[0] == 403


def test_a_page_is_sent_what_it_has_not_seen(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    feed = Feed([path])
    feed.look()
    first = feed.answer("")
    assert "Waiting for" in first["content"]
    assert feed.answer(first["version"], wait=0.01) == {"version": first["version"], "content": ""}
    save(path, [opening(), sync(0)])
    feed.look()
    answer = feed.answer(first["version"])
    assert "step 10 of 2,000" in answer["content"]
    assert feed.answer("another server's") == answer
    save(tmp_path / "new", [sync(5)]).replace(path)
    feed.look()
    assert "step 60" in feed.answer(answer["version"])["content"]


def test_a_waiting_page_is_answered_at_once(tmp_path: Path) -> None:
    path = save(tmp_path / "run.jsonl", [sync(0)])
    feed = Feed([path])
    feed.look()
    seen = feed.answer("")["version"]
    answers: list[dict[str, str]] = []
    waits = threading.Thread(target=lambda: answers.append(feed.answer(seen)))
    waits.start()
    with path.open("a") as file:
        file.write(json.dumps(sync(1)) + "\n")
    feed.look()
    waits.join(10)
    assert "step 20" in answers[0]["content"]


def test_drawing_takes_a_small_share_of_a_core_however_slow_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, drawn = tmp_path / "run.jsonl", list[float]()

    def slowly(_: object) -> str:
        began = time.thread_time()
        while time.thread_time() < began + 0.01:
            pass
        drawn.append(time.monotonic())
        return f"drawing {len(drawn)}"

    monkeypatch.setattr(server, "content", slowly)
    feed, seen = Feed([path]), ""
    for at in range(3):
        save(path, [sync(k) for k in range(at + 1)])
        feed.look()
        assert at == 0 or feed.answer("")["content"] == f"drawing {at}", "a new page waits for nothing"
        answer = feed.answer(seen)
        assert answer["content"] == f"drawing {at + 1}"
        assert answer["version"] == feed.version
        seen = answer["version"]
    assert len(drawn) == 3
    assert min(late - early for early, late in pairwise(drawn)) >= 0.01 / 0.03


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_watching_takes_little_memory_and_little_of_a_core(tmp_path: Path) -> None:
    """Under 50 MB after ten thousand records, and 5 % of a core while a sync a second comes in."""
    path = tmp_path / "run.jsonl"
    line = json.dumps(sync(100)) + "\n"
    path.write_text(line * 10_000)
    command = [sys.executable, "-m", "hdet", "watch", str(path), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        url = process.stdout.readline().split(" at ")[1].split()[0]
        answer = json.loads(ask(url + "content")[1])  # once there is something, all of it has been read
        while "10,000 records" not in answer["content"]:
            time.sleep(0.2)
            answer = json.loads(ask(url + "content")[1])
        began, clock = _processor_seconds(process.pid), time.monotonic()
        for _ in range(3):
            with path.open("a") as file:
                file.write(line)
            answer = json.loads(ask(f"{url}content?seen={answer['version']}")[1])
            time.sleep(1)
        share = (_processor_seconds(process.pid) - began) / (time.monotonic() - clock)
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        assert pages * os.sysconf("SC_PAGE_SIZE") < 50e6
        assert share < 0.05
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout
        process.stdout.close()


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
