"""All Python on our pages runs, in the order of the page, after the script that a reader already has."""

from __future__ import annotations

from pathlib import Path

import pytest

import hdet
from hdet.replicas.launch import LocalProcesses, ReplicaError
from tests.docs.fences import Script, fences, pages, run_on, scripts

NUMBERED = [
    pytest.param(page, number, one, id=str(one))
    for page in pages()
    for number, one in enumerate(scripts(page))
    if not one.needs
]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_every_fence_is_python(page: Path) -> None:
    for fence in fences(page):
        fence.compiled()


@pytest.mark.parametrize(("page", "number", "script"), NUMBERED)
def test_page(page: Path, number: int, script: Script, ranks: LocalProcesses) -> None:
    if script.ranks == 1:
        script.run()
    else:
        ranks.run(run_on, page, number, size=script.ranks)


# ---------------------------------------------------------------------- the runner itself


def page_of(folder: Path, *parts: str) -> Path:
    page = folder / "page.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def fence(code: str, info: str = "python") -> str:
    return f"```{info}\n{code}\n```"


def test_names_last_for_a_section_and_no_longer(tmp_path: Path) -> None:
    page = page_of(tmp_path, fence("a = S"), "### More", fence("b = a"), "## Other", fence("c = a"))
    first, second = scripts(page)
    assert first.run()["b"] == 88
    with pytest.raises(NameError, match="'a'"):
        second.run()


def test_a_fence_before_what_it_needs_fails(tmp_path: Path) -> None:
    (script,) = scripts(page_of(tmp_path, fence("b = a"), fence("a = 1")))
    with pytest.raises(NameError, match="'a'"):
        script.run()


def test_a_failing_fence_fails_with_the_page_and_its_line(tmp_path: Path) -> None:
    page = page_of(tmp_path, "words", fence("assert model is None"))
    with pytest.raises(AssertionError) as failure:
        scripts(page)[0].run()
    last = failure.traceback[-1]
    assert (last.path, last.lineno + 1) == (page, 3)


def test_a_rank_that_fails_is_noticed(tmp_path: Path, ranks: LocalProcesses) -> None:
    code = "import torch.distributed as dist\nassert dist.get_rank() == 0"
    page = page_of(tmp_path, fence(code, "python ranks=2"))
    assert scripts(page)[0].ranks == 2
    with pytest.raises(ReplicaError, match="rank 1: AssertionError"):
        ranks.run(run_on, page, 0, size=2)


@pytest.mark.parametrize(
    "info", ["python skip", "python needs=nothing", "python ranks=two", "py", "", "{code} python"]
)
def test_words_that_nobody_knows_are_refused(info: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page.md, line 1: .*, got "):
        fences(page_of(tmp_path, fence("a = 1", info)))


def test_what_would_not_be_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be closed"):
        fences(page_of(tmp_path, "```python", "a = 1"))
    with pytest.raises(ValueError, match="prompt"):
        fences(page_of(tmp_path, fence("hdet demo", "console")))
    with pytest.raises(ValueError, match="quotation"):
        fences(page_of(tmp_path, "> ```python", "> a = 1", "> ```"))


def test_what_is_shown_of_a_fence_is_none(tmp_path: Path) -> None:
    assert not fences(page_of(tmp_path, "````text", fence("a ="), "````"))


def test_objections_of_the_package_fail_unless_they_are_announced(tmp_path: Path) -> None:
    code = "import logging\nlogging.getLogger('hdet').warning('mind')"
    calm = fence("a = 1", "python warns")
    page = page_of(tmp_path, fence(code), "## Other", fence(code, "python warns"), calm)
    first, second = scripts(page)
    with pytest.raises(AssertionError, match="objects: mind"):
        first.run()
    with pytest.raises(AssertionError, match="line 10: the package is to object, and does not"):
        second.run()


def test_what_a_section_leaves_open_is_detached(tmp_path: Path) -> None:
    probe = "probe = hdet.Probe(loss_of, held_out, model=model)\n"
    code = f"{probe}auto = hdet.AutoLR(optimizer, total_steps=S, probe=probe)"
    names = scripts(page_of(tmp_path, fence(code)))[0].run()
    assert isinstance(names["auto"], hdet.AutoLR)
    assert not names["optimizer"]._optimizer_step_pre_hooks
