"""The Python of our pages that needs a framework runs where that framework is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdet.replicas.launch import LocalProcesses
from tests.docs.fences import Script, pages, run_on, scripts
from tests.integrations import llama

NUMBERED = [
    pytest.param(page, number, one, id=str(one))
    for page in pages()
    for number, one in enumerate(scripts(page))
    if one.needs
]


@pytest.mark.parametrize(("page", "number", "script"), NUMBERED)
def test_page(page: Path, number: int, script: Script, ranks: LocalProcesses) -> None:
    for package in script.needs:
        pytest.importorskip(package, reason=f"make test-integrations installs {package}")
    if script.ranks == 1:
        run_launched(0, 1, page, number)
    else:
        ranks.run(run_launched, script.ranks, page, number, size=script.ranks)


def run_launched(rank: int, size: int, page: Path, number: int) -> None:
    with llama.launched(rank, size):
        run_on(rank, page, number)
