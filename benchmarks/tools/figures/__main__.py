"""Draw, and where asked train first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.show import as_json
from benchmarks.tools.figures import draw, draw_fan_out, train, train_fan_out

#: Who trains, who draws, and into which folder.
_DATA = {
    "decisions": (train, draw, Path("docs/figures")),
    "fan-out": (train_fan_out, draw_fan_out, Path("docs")),
}


def main() -> None:
    """Write what was asked for, and name it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools.figures", description=__doc__)
    parser.add_argument("--train", nargs="*", metavar="NAME", help="make the data anew first: all, or these")
    given = parser.parse_args().train
    for name, (run, make, folder) in _DATA.items():
        data = Path(f"docs/figures/{name}.json")
        if given == [] or name in (given or ()):
            data.write_text(as_json(run()), encoding="utf-8")
            print(data)
        for path in make(json.loads(data.read_text(encoding="utf-8")), folder):
            print(path)


if __name__ == "__main__":
    main()
