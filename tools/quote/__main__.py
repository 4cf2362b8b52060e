"""Fill every page anew."""

from __future__ import annotations

from pathlib import Path

from tools.quote.pages import fill, pages

for page in pages(Path()):
    file = Path(page)
    before = file.read_text(encoding="utf-8")
    after = fill(before, Path("docs/evidence"), page)
    if after != before:
        file.write_text(after, encoding="utf-8")
        print(page)
