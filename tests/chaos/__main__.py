"""``python -m tests.chaos --output docs/evidence/chaos.json``: the whole chaos suite, its tally as JSON.

Written after every line, so that whoever stops it has what was done until then, with its real counts. Parts
by name are done alone, and those that the file has of the same machine stay.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import about, rounded
from tests.chaos.kills import kills
from tests.chaos.poisons import poisons
from tests.chaos.soak import soak

#: What is asked for: hits, poisons, steps.
PARTS: dict[str, tuple[Callable[..., Iterator[dict[str, Any]]], int]] = {
    "kills": (kills, 50),
    "poisons": (poisons, 200),
    "soak": (soak, 1_000_000),
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none")
    parser.add_argument("--output", type=Path, help="a JSON file for the tally")
    parser.add_argument("--seed", type=int, default=0, help="of what is random")
    parser.add_argument("--count", type=int, help="of hits, poisons or steps, instead of the full number")
    chosen = parser.parse_args(words)
    if unknown := set(chosen.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    result = _begun(chosen.output)
    broken = 0
    for name in chosen.parts or PARTS:
        work, full = PARTS[name]
        count = chosen.count or full
        part = {"asked": full, "seed": chosen.seed, "lines": []}
        result[name] = part
        for line in work(count, chosen.seed):
            print(name, json.dumps(rounded(line)), flush=True)
            broken += bool(line["broken"])
            part["lines"].append(rounded(line))
            if chosen.output:
                chosen.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{broken} lines break what is promised")
    return int(broken > 0)


def _begun(output: Path | None) -> dict[str, Any]:
    """What the file has already, if this machine has written it."""
    result = {**about("chaos", quick=False, device="cpu"), "command": "python -m tests.chaos"}
    if output and output.exists():
        before = json.loads(output.read_text(encoding="utf-8"))
        if all(before["machine"][key] == result["machine"][key] for key in ("cpu", "cores", "torch")):
            result.update({name: before[name] for name in PARTS if name in before})
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
