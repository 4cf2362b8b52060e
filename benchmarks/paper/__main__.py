"""``python -m benchmarks.paper STUDY``: one study, into its part of docs/evidence/paper.json."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.paper.studies import STUDIES
from benchmarks.rows import six_digits
from benchmarks.show import as_json, evidence_folder


def main() -> None:
    """Run the studies named, and write each down when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", nargs="+", choices=STUDIES, help="what to settle")
    parser.add_argument("--device", default="cpu", help="where to train; without a GPU take --quick")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see that it works; tells nothing")
    parser.add_argument("--output", type=Path, help="the file to write to")
    chosen = parser.parse_args()
    file = chosen.output or (Path("runs/paper.json") if chosen.quick else evidence_folder() / "paper.json")
    torch.set_float32_matmul_precision("high")
    for name in chosen.study:
        began = time.perf_counter()
        result = STUDIES[name](chosen.device, print, quick=chosen.quick)
        about = machine.about(f"paper {name}", quick=chosen.quick, device=chosen.device)
        about["command"] = f"python -m benchmarks.paper {name} --device {chosen.device}"
        about["minutes"] = (time.perf_counter() - began) / 60
        file.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(file.read_text()) if file.exists() else {}
        head = {key: about[key] for key in ("experiment", "command", "machine")}
        known |= {**head, "experiment": "paper", "command": "python -m benchmarks.paper STUDY --device cuda"}
        known[name] = six_digits({**about, **result})
        file.write_text(as_json(known), encoding="utf-8")
        print(f"{name}: {about['minutes']:.1f} minutes, written to {file}")


if __name__ == "__main__":
    main()
