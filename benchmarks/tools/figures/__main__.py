"""Draw, and where asked train first."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.show import as_json
from benchmarks.tools.figures import draw, train


def main() -> None:
    """Write what was asked for, and name it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tools.figures", description=__doc__)
    parser.add_argument("--train", action="store_true", help="make the data anew first, by training")
    data = Path("docs/figures/decisions.json")
    if parser.parse_args().train:
        data.write_text(as_json(train()), encoding="utf-8")
        print(data)
    for path in draw(json.loads(data.read_text(encoding="utf-8")), Path("docs/figures")):
        print(path)


if __name__ == "__main__":
    main()
