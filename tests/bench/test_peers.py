"""Programs of peers: continuous functions mean what they should, and are proved."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from everyformer.bench.methods.compile import peer_programs, peers
from everyformer.bench.methods.compile.peer_programs import (
    PROGRAMS,
    balanced_word,
    sort_unique,
)

Word = tuple[int, ...]

SYMBOLS = "(){}"
VOCABULARIES = {"shuffle Dyck-1": 2, "shuffle Dyck-2": 4, "sort unique": 5}
"""Pairs of brackets; enough distinct tokens for n = 4. All others have three."""


def in_order(word: Word) -> list[float]:
    """Selection: the smallest of what is left."""
    left, found = list(word), []
    while left:
        found.append(left.pop(left.index(min(left))))
    return found


def occurrences(word: Word) -> list[float]:
    return [sum(1 for other in word if other == token) for token in word]


def part_of_ones(word: Word) -> list[float]:
    return [sum(t == 1 for t in word[: i + 1]) / (i + 1) for i in range(len(word))]


def balanced(word: Word) -> list[float]:
    """Each kind of bracket by itself: adjacent pairs are struck out until nothing moves."""
    text = "".join(SYMBOLS[t] for t in word)
    good = True
    for pair in ("()", "{}"):
        own = "".join(c for c in text if c in pair)
        while pair in own:
            own = own.replace(pair, "")
        good = good and not own
    return [float(good)] * len(word)


ORACLES: dict[str, Callable[[Word], list[float]]] = {
    "reverse": lambda word: [word[-1 - i] for i in range(len(word))],
    "sort": in_order,
    "sort unique": in_order,
    "histogram": occurrences,
    "histogram, by value": occurrences,
    "fraction of previous": part_of_ones,
    "shuffle Dyck-1": balanced,
    "shuffle Dyck-2": balanced,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_equal_programs_on_integers(name: str) -> None:
    n, vocabulary = (
        4,
        {"shuffle Dyck-1": 2, "shuffle Dyck-2": 4, "sort unique": 5}.get(name, 3),
    )
    program = PROGRAMS[name](n, vocabulary)
    words = list(itertools.product(range(vocabulary), repeat=n))
    if name == "sort unique":
        words = [word for word in words if len(set(word)) == n]
    meant = np.array([ORACLES[name](word) for word in words])
    assert np.array_equal(meant, [program.meaning(word) for word in words])
    f = program.function(np.array(words, dtype=float)[..., None])
    np.testing.assert_allclose(f[..., 0], meant, rtol=0, atol=1e-14)
    assert sorted(map(tuple, program.inputs().tolist())) == words


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_are_continuous_between_integers(name: str) -> None:
    n = 4
    program = PROGRAMS[name](n, 4)
    x = np.random.default_rng(0).uniform(0, 3, (200, n, 1))
    step = 1e-7 * np.random.default_rng(1).uniform(-1, 1, x.shape)
    moved = np.abs(program.function(x + step) - program.function(x))
    assert moved.max() < 1e-7 * 200


@pytest.mark.parametrize("name", ["reverse", "histogram"])
def test_compiled_proved_and_exact(name: str) -> None:
    row = peers.row_of(PROGRAMS[name](4, 3))
    assert row["outcome"] == "PROVED"
    assert row["proved"] <= row["proved_float64"] < 1e-12
    assert row["exact"] == row["inputs"] == row["of"] == 3**4
    assert row["largest_gap"] <= row["proved_float64"]


def test_wrong_results_are_not_exact() -> None:
    program = PROGRAMS["fraction of previous"](4, 3)
    words = program.inputs()
    meant = np.array([program.meaning(tuple(word)) for word in words.tolist()])
    assert program.exact(words, meant + 0.124)[0] == len(words)
    off = meant.copy()
    off[7, 3] += 0.126  # quarters are at most .125 from what rounds to them
    off[9, 0] = np.nan
    exact, gap = program.exact(words, off)
    assert (exact, gap) == (len(words) - 2, np.inf)


def test_random_inputs_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_programs, "MOST_INPUTS", 200)
    distinct = sort_unique(9, 9).inputs()
    assert len(distinct) == 200
    assert all(len(set(word)) == 9 for word in distinct.tolist())
    rng = np.random.default_rng(0)
    words = [tuple(balanced_word(rng, 12, 2).tolist()) for _ in range(50)]
    assert all(balanced(word)[0] == 1 for word in words)
    assert len(set(words)) > 40
    dyck = PROGRAMS["shuffle Dyck-2"](12, 4)
    good = [dyck.meaning(tuple(word))[0] for word in dyck.inputs().tolist()]
    assert all(good[::2])
    assert not all(good[1::2])


def test_refusals_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "TOL", 1e-200)
    row = peers.row_of(PROGRAMS["histogram"](4, 3))
    assert row["outcome"].startswith("refused: ")
    report = peers.run(quick=True)
    assert peers.table(report).row_count == 2
