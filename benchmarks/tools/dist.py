"""``make dist``: the wheel and the sdist, built and tried as a stranger would have them.

The wheel is built twice, from the checkout and from the sdist, and both must be the same bytes. It is then
installed where no checkout is in sight: into an environment that borrows torch and the other requirements
from the one that runs this, but not its hdet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import torch

import hdet

__all__ = ["build", "clean", "main", "missing", "strangers"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "dist"


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel in ``folder``. Raises where the sdist does not build to the same wheel."""
    _hatchling(ROOT, folder, "sdist")
    _hatchling(ROOT, folder, "wheel")
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "again", filter="data")
    _hatchling(folder / "again" / sdist.name.removesuffix(".tar.gz"), folder / "again", "wheel")
    if (folder / "again" / wheel.name).read_bytes() != wheel.read_bytes():
        raise RuntimeError(f"the sdist must build to the same wheel; compare {folder / 'again' / wheel.name}")
    return sdist, wheel


def _hatchling(source: Path, folder: Path, target: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def missing(wheel: Path) -> list[str]:
    """Files of the package that the wheel does not hold: every one of them is needed."""
    package = ROOT / "src"
    files = (path for path in (package / "hdet").rglob("*") if path.is_file())
    names = {path.relative_to(package).as_posix() for path in files if "__pycache__" not in path.parts}
    return sorted(names - set(_names(wheel)))


def strangers(wheel: Path) -> list[str]:
    """What it holds beside the package and its metadata: tests, tools, documents, data."""
    kinds = (".py", ".js", ".css", ".html", "/py.typed")
    about = f"hdet-{hdet.__version__}.dist-info/"
    return [
        name
        for name in _names(wheel)
        if not name.startswith(about) and not (name.startswith("hdet/") and name.endswith(kinds))
    ]


def _names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as packed:
        return packed.namelist()


def clean(folder: Path, wheel: Path) -> Path:
    """The interpreter of an environment that has this wheel, and all else of ours but our hdet: a path file
    brings folders, and not the path files within them, one of which would bring the checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{Path(torch.__file__).parents[1]}\n", encoding="utf-8")
    return python


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """What a command of the environment prints, away from the checkout."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-I", *arguments],
        cwd=cwd,
        env=variables,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def main() -> None:
    """Everything, said as it goes."""
    subprocess.run(["rm", "-rf", str(FOLDER)], check=True)
    sdist, wheel = build(FOLDER)
    for path in (sdist, wheel):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes", flush=True)
    print(f"{len(_names(wheel))} files in the wheel; the sdist builds to the same bytes")
    if bad := [*missing(wheel), *strangers(wheel)]:
        raise SystemExit(f"the wheel must hold the package and nothing else: {', '.join(bad)}")
    checks = FOLDER / "checks"
    subprocess.run([sys.executable, "-m", "venv", str(checks)], check=True)
    tools = ["twine", "check-wheel-contents"]
    subprocess.run([str(checks / "bin" / "pip"), "install", "--quiet", *tools], check=True)
    subprocess.run([str(checks / "bin" / "twine"), "check", "--strict", str(sdist), str(wheel)], check=True)
    subprocess.run([str(checks / "bin" / "check-wheel-contents"), str(wheel)], check=True)
    python = clean(FOLDER / "clean", wheel)
    empty = FOLDER / "elsewhere"
    empty.mkdir()
    print(run(python, "-c", "import hdet; print(hdet.__file__)", cwd=empty), end="")
    for command in (["--version"], ["demo"], ["doctor"]):
        print(f"$ hdet {' '.join(command)}", flush=True)
        print(run(python, "-m", "hdet", *command, cwd=empty), flush=True)


if __name__ == "__main__":
    main()
