"""Fill every page again, and the drawings of the evidence."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tools.quote.drawing import drawings
from benchmarks.tools.quote.pages import fill, pages

EVIDENCE = Path("docs/evidence")


def main() -> None:
    """Write what has changed, and name it."""
    texts = {page: fill(Path(page).read_text(encoding="utf-8"), EVIDENCE, page) for page in pages(Path())}
    texts |= {str(EVIDENCE / name): drawing for name, drawing in drawings(EVIDENCE).items()}
    for name, text in texts.items():
        file = Path(name)
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
