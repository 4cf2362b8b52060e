"""Who explores what: the levels of Eq. 1, and designs that deal them to replicas in every round (Eq. 9).

A *design* gives every replica a level z in [−1, 1] for every hyperparameter; a learning rate's multiplier is
ρ = 1 + α·z (Eq. 1). These are pure functions of integers and strings, so every rank computes the same answer
without communicating, and no random number generator, private or global, is involved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Literal

__all__ = [
    "DESIGNS",
    "Design",
    "choose_design",
    "hadamard",
    "in_turn",
    "levels",
    "orthogonal",
    "permutation",
    "permuted",
]


def levels(size: int) -> tuple[float, ...]:
    """Eq. 1's symmetric ladder z_0 < … < z_{N−1} in [−1, 1]: z_r = (r − (N−1)/2)/δ, δ = max((N−1)/2, ½).

    >>> levels(3)
    (-1.0, 0.0, 1.0)
    >>> levels(1)
    (0.0,)
    """
    centre = (size - 1) / 2
    delta = max(centre, 0.5)
    return tuple((r - centre) / delta for r in range(size))


def permutation(size: int, *, seed: int, round: int, name: str) -> tuple[int, ...]:
    """A uniformly random permutation of ``0…size−1``, fixed by ``(seed, round, name)``.

    Ranks are sorted by a hash of their own key. That is a true permutation, it is independent between
    names and between rounds, and it is the same on every machine and every version of Python.
    """

    def key(rank: int) -> bytes:
        return hashlib.sha256(f"{seed}\0{round}\0{name}\0{rank}".encode()).digest()

    return tuple(sorted(range(size), key=key))


def permuted(size: int, names: Sequence[str], *, seed: int, round: int) -> list[tuple[float, ...]]:
    """The paper's design: the ladder, in an order of its own for every hyperparameter.

    Round 0 is Eq. 1 as it stands (replica r explores z_r, line 3 of Algorithm 1); every later round
    draws a fresh permutation for each name (Eq. 9).
    """
    ladder = levels(size)
    if round == 0:
        return [ladder for _ in names]
    orders = [permutation(size, seed=seed, round=round, name=name) for name in names]
    return [tuple(ladder[i] for i in order) for order in orders]


def orthogonal(size: int, names: Sequence[str], *, seed: int, round: int) -> list[tuple[float, ...]]:
    """A two-level design: half of the replicas at −1, half at +1, and no two hyperparameters go together.

    The columns are those of a Hadamard matrix (for sizes that are no power of 2, Plackett and Burman's), so
    N replicas separate up to N − 1 hyperparameters, where effects add up each as exactly as if it were alone.
    Where two of them interact, that looks like an effect of a third: in every round the rows are dealt to
    other replicas, names to other columns, and half of the columns are negated, so that it does so with
    either sign, and cancels over rounds. Who else is explored does not matter: see :func:`_columns`.

    >>> a, b = orthogonal(4, ["a", "b"], seed=0, round=1)
    >>> sum(a), sum(b), sum(x * y for x, y in zip(a, b))
    (0.0, 0.0, 0.0)
    """
    matrix = hadamard(size)
    if len(names) > size - 1:
        raise ValueError(
            f"orthogonal: a design for {size} replicas separates at most {size - 1} hyperparameters, got "
            f"{len(names)}; explore fewer, or use more replicas"
        )
    rows = permutation(size, seed=seed, round=round, name="\0rows")
    columns = permutation(size - 1, seed=seed, round=round, name="\0columns")
    column = {name: columns[i] for name, i in _columns(size - 1, names).items()}
    sign = {name: 1 - 2 * permutation(2, seed=seed, round=round, name=f"\0sign\0{name}")[0] for name in names}
    return [tuple(float(sign[name] * matrix[row][1 + column[name]]) for row in rows) for name in names]


#: With it the kinds that hdet has all prefer different columns, from 8 replicas on; of 4, the usual three.
_SALT = 2607


def _columns(count: int, names: Sequence[str]) -> dict[str, int]:
    """One of ``count`` columns for every name, by the name alone: removing a hyperparameter changes nothing
    for those that stay. Where two prefer the same one, the first by the alphabet has it.

    >>> _columns(7, ["dropout", "weight_decay"])["dropout"] == _columns(7, ["dropout"])["dropout"]
    True
    """
    taken: dict[str, int] = {}
    for name in sorted(names):
        free = [column for column in range(count) if column not in taken.values()]
        taken[name] = min(free, key=lambda i: hashlib.sha256(f"{_SALT}\0{name}\0{i}".encode()).digest())
    return taken


def in_turn(size: int, names: Sequence[str], *, seed: int, round: int) -> list[tuple[float, ...]]:
    """For one replica: the rows of an orthogonal design, one round after the other, then those of the next.

    >>> [in_turn(1, ["a"], seed=0, round=k)[0][0] for k in range(8)]
    [-1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0]
    """
    rounds = 4 * -(-(len(names) + 1) // 4)
    block = orthogonal(rounds, names, seed=seed, round=1 + round // rounds)
    return [(row[round % rounds],) for row in block]


Design = Literal["permutation", "orthogonal", "in turn"]
DESIGNS: dict[Design, Callable[..., list[tuple[float, ...]]]] = {
    "permutation": permuted,
    "orthogonal": orthogonal,
    "in turn": in_turn,
}


def choose_design(
    caller: str, asked: Design | None, explored: Sequence[str], arms: int, *, jointly: bool
) -> Design:
    """The design asked for, or the best there is; an error where it cannot separate what is explored."""
    if asked not in (None, *DESIGNS):
        raise ValueError(f"{caller}: design must be 'permutation' or 'orthogonal', got {asked!r}")
    if arms == 1:
        return "in turn" if asked == "in turn" else "permutation"  # one level each, and that is 0
    if jointly and len(explored) > arms - 1:
        raise ValueError(
            f"{caller}: {arms} replicas with values of their own tell at most {arms - 1} hyperparameters "
            f"apart, got {len(explored)} ({', '.join(explored)}); explore fewer, or use {len(explored) + 1} "
            "replicas or arms, better a multiple of 4"
        )
    if asked == "in turn":
        raise ValueError(f"{caller}: design 'in turn' is for one replica, got {arms}; use 'orthogonal'")
    if asked == "orthogonal":
        try:
            orthogonal(arms, explored, seed=0, round=0)
        except ValueError as error:
            raise ValueError(f"{caller}: {error}") from error
        return asked
    if asked is None and jointly and arms >= 4 and _hadamard(arms) is not None:
        return "orthogonal"
    return "permutation"


def hadamard(size: int) -> list[list[int]]:
    """A square matrix of ±1 with orthogonal columns, the first of them all 1.

    From Sylvester's doubling and Paley's construction over primes, which together cover 1, 2 and the
    multiples of 4 up to 48 but for 28 and 36.

    >>> hadamard(2)
    [[1, 1], [1, -1]]
    """
    matrix = _hadamard(size)
    if matrix is None:
        below = next(n for n in range(size, 0, -1) if _hadamard(n) is not None)
        raise ValueError(
            "an orthogonal design needs 2 replicas or a multiple of 4 for which a Hadamard matrix is "
            f"known here, got {size}; use {below} replicas (or arms), or design='permutation'"
        )
    # Negating a row keeps the columns orthogonal: it makes the first column the constant.
    return [[row[0] * entry for entry in row] for row in matrix]


def _hadamard(size: int) -> list[list[int]] | None:
    if size in (1, 2):
        return [[1, 1], [1, -1]] if size == 2 else [[1]]
    if size < 1 or size % 4:
        return None
    if _is_prime(size - 1):
        return _paley(size - 1)
    half = _hadamard(size // 2)
    if half is None:
        return None
    return [row + row for row in half] + [row + [-entry for entry in row] for row in half]


def _paley(q: int) -> list[list[int]]:
    """Size q + 1 for a prime q ≡ 3 mod 4: 1 on the diagonal, else whether i − j is a square modulo q."""
    squares = {i * i % q for i in range(1, q)}
    core = [[1 if i == j or (i - j) % q in squares else -1 for j in range(q)] for i in range(q)]
    return [[1] * (q + 1), *([-1, *row] for row in core)]


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))
