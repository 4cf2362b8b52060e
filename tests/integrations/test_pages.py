"""The Python of our pages that needs a framework runs where that framework is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hdet.replicas.launch import LocalProcesses
from tests.docs.fences import Script, pages, run_on, scripts

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
        script.run()
    else:
        ranks.run(run_on, page, number, size=script.ranks)
