"""What drawing costs is measured, whatever the source, and a slow source is found out."""

from __future__ import annotations

import json

import pytest

from benchmarks.speed import feed


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A quick measurement on the stream and on a made-up file in the form of KuaiRand's."""
    folder = tmp_path_factory.mktemp("data")
    header = ["user_id", "video_id", "time_ms", "is_comment", "is_forward", "is_follow", "label", "long_view"]
    lines = [[i % 50, i % 97, i, i % 2, 0, 0, i % 3 == 0, i % 5 == 0] for i in range(1600)]
    text = "\n".join("\t".join(str(int(cell)) for cell in line) for line in lines)
    (folder / "kuairand_feed.tsv").write_text("\t".join(header) + "\n" + text + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDET_DATA", str(folder))
        patch.setattr(feed, "STRETCH", 256)
        return feed.run(quick=True)


def test_both_sources_are_measured_against_the_goal(result: dict) -> None:
    assert result["experiment"] == "feed"
    assert result["command"] == "python -m benchmarks feed --quick"
    assert [row["source"] for row in result["rows"]] == ["synthetic stream", "KuaiRand"]
    assert result["caveats"] == []
    for row, goal in zip(result["rows"], result["goals"].values(), strict=True):
        assert 0 < row["draw_ms"] < row["step_ms"]
        assert row["share_iqr"][0] <= row["share"] <= row["share_iqr"][1]
        assert row["drawn_per_s"] == pytest.approx(1e3 * row["batch"] / row["draw_ms"], rel=1e-3)
        assert row["trained_per_s"] == pytest.approx(1e3 * row["batch"] / row["step_ms"], rel=1e-3)
        assert goal["measured"] == row["share"]
        assert goal["met"] == (row["share"] <= goal["at_most"])
    assert json.loads(json.dumps(result)) == result


def test_table_and_markdown_say_what_was_measured(result: dict) -> None:
    assert feed.table(result).row_count == len(result["rows"])
    for row in result["rows"]:
        line = next(line for line in feed.markdown(result).splitlines() if row["source"] in line)
        assert f"| {row['step_ms']:.2f} ms |" in line
        assert f"| {row['share']:.1%} (" in line
