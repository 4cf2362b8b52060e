"""The stream of impressions."""

from itertools import islice

import torch

from benchmarks.paper import stream

ITEMS, ROWS = 50, 4096


def of(seed, begin=0, steps=2):
    course = stream.make("cpu", steps=steps, rows=ROWS, items=ITEMS, begin=begin)
    return list(islice(course.batches(seed), steps))


def test_a_seed_has_its_batches():
    first, again, other = of(0), of(0), of(1)
    for mine, same, another in zip(first, again, other, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, same, strict=True))
        assert not torch.equal(mine[2], another[2])
    assert not torch.equal(first[0][2], first[1][2]), "no sample comes twice"
    history, actions, candidate, answers = first[0]
    assert history.shape == actions.shape == (ROWS, 8)
    assert candidate.min() == 0
    assert candidate.max() < ITEMS
    assert answers.shape == (ROWS, 3)


def test_tastes_answer_otherwise_half_a_turn_later():
    """The same impressions of the same users: after half a turn a topic is its opposite."""

    def drawn(step):
        return stream._impressions(ITEMS, "cpu", ROWS, step, torch.Generator().manual_seed(3))

    start, half, whole = drawn(0), drawn(20_000), drawn(40_000)
    assert torch.equal(start[0], half[0])
    alike = (start[1] == half[1]).float().mean()
    assert alike < 0.6
    assert (start[1] == whole[1]).float().mean() > 0.999


def test_held_out_is_of_the_end_of_the_stream():
    early, late = (stream.make("cpu", steps=s, rows=8, items=ITEMS).held_out for s in (1, 20_000))
    assert torch.equal(early[0][0], late[0][0])
    assert not torch.equal(early[0][1], late[0][1])
