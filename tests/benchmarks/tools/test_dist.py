"""The wheel, built and installed where no checkout is in sight. ``make dist`` does more."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import hdet
from benchmarks.tools.dist import build, clean, missing, run, strangers
from tests.browser.histories import save, whole


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))  # and the sdist builds to the same wheel, or this raises


def test_the_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    wheel = built[1]
    assert wheel.name == f"hdet-{hdet.__version__}-py3-none-any.whl"
    assert missing(wheel) == []
    assert strangers(wheel) == []


def test_what_does_not_belong_there_is_found(built: tuple[Path, Path], tmp_path: Path) -> None:
    spoilt = tmp_path / built[1].name
    with zipfile.ZipFile(built[1]) as old, zipfile.ZipFile(spoilt, "w") as new:
        for name in old.namelist():
            if name != "hdet/py.typed":
                new.writestr(name, old.read(name))
        new.writestr("tests/test_it.py", "")
        new.writestr("hdet/data.pt", "")
    assert missing(spoilt) == ["hdet/py.typed"]
    assert strangers(spoilt) == ["tests/test_it.py", "hdet/data.pt"]


def test_it_runs_from_a_clean_environment(built: tuple[Path, Path], tmp_path: Path) -> None:
    python = clean(tmp_path / "clean", built[1])
    history = save(tmp_path / "run.jsonl", whole())
    where = run(python, "-c", "import hdet; hdet.AutoLR; print(hdet.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path), "not the checkout's"
    script = str(tmp_path / "clean" / "bin" / "hdet")
    assert run(python, script, "--version", cwd=tmp_path) == f"hdet {hdet.__version__}\n"
    told = run(python, script, "report", str(history), "--output", "page.html", cwd=tmp_path)
    assert told.endswith("Written to page.html\n")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(part in page for part in ("function draw(", "--ink:", "<figure>")), (
        "its script, style and charts"
    )
    with pytest.raises(RuntimeError, match=r"hdet report gone ended with 2:(?s:.)*gone does not exist"):
        run(python, "-m", "hdet", "report", "gone", cwd=tmp_path)
