"""Write the recorded runs: ``python -m tests.recorded``; with ``states``, only the states of this format.

States that are there stay: later versions must load what an earlier one has saved."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from benchmarks.regret import arms
from benchmarks.regret.plan import run_of
from hdet.loop.state import FORMAT
from hdet.replicas.launch import LocalProcesses
from tests.recorded.machine import fingerprint
from tests.recorded.scenarios import SAVED, SCENARIOS, STATES, kept

HERE = Path(__file__).parent


def record_states() -> None:
    folder = STATES / str(FORMAT)
    folder.mkdir(parents=True, exist_ok=True)
    with LocalProcesses(2) as ranks:
        for name in SAVED:
            scenario, file = SCENARIOS[name], folder / f"{name}.pt"
            if not file.exists():
                torch.save(ranks.run(scenario, scenario.stop_at, size=scenario.ranks, timeout=120), file)


if __name__ == "__main__":
    torch.set_num_threads(1)
    record_states()
    if sys.argv[1:] == ["states"]:
        raise SystemExit
    with LocalProcesses(4) as ranks:
        runs = {}
        for name, scenario in SCENARIOS.items():
            whole = ranks.run(scenario, size=scenario.ranks, timeout=120)[0]
            if scenario.shows is not None and not scenario.shows(whole):
                raise SystemExit(f"{name}: what it is there for did not happen ({scenario.shows.__name__})")
            runs[name] = kept(whole)
            print(f"{name}: {len(whole['records'])} records")
    rows = []
    for recorded in (json.loads(line) for line in (HERE / "regret.jsonl").read_text().splitlines()):
        row = arms.execute(run_of({"scale": "cpu", "device": "cpu", "steps": None, **recorded}))
        rows.append(json.dumps({name: row[name] for name in recorded}))
    (HERE / "regret.jsonl").write_text("\n".join(rows) + "\n")
    (HERE / "runs.json").write_text(json.dumps({"machine": fingerprint(), "runs": runs}, indent=1) + "\n")
