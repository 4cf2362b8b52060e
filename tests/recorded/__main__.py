"""Write the recorded runs: ``python -m tests.recorded``."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from hdet.bench.regret import arms
from hdet.bench.regret.plan import run_of
from hdet.replicas.launch import LocalProcesses
from tests.recorded.machine import fingerprint
from tests.recorded.scenarios import SCENARIOS

HERE = Path(__file__).parent

if __name__ == "__main__":
    torch.set_num_threads(1)
    with LocalProcesses(4) as ranks:
        runs = {}
        for name, scenario in SCENARIOS.items():
            whole = ranks.run(scenario, size=scenario.ranks, timeout=120)[0]
            runs[name] = {"records": whole["records"], "weights": whole["weights"]}
            if scenario.stop_at < scenario.steps:
                halves = ranks.run(scenario, scenario.stop_at, size=scenario.ranks, timeout=120)
                torch.save([half["saved"] for half in halves], HERE / f"{name}.pt")
            print(f"{name}: {len(whole['records'])} records")
    rows = []
    for recorded in (json.loads(line) for line in (HERE / "regret.jsonl").read_text().splitlines()):
        row = arms.execute(run_of({"scale": "cpu", "device": "cpu", "steps": None, **recorded}))
        rows.append(json.dumps({name: row[name] for name in recorded}))
    (HERE / "regret.jsonl").write_text("\n".join(rows) + "\n")
    (HERE / "runs.json").write_text(json.dumps({"machine": fingerprint(), "runs": runs}, indent=1) + "\n")
