"""Bisected cells: above the exact integral, never above the bound of whole cells."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everyformer as ef
from everyformer.certify.on_cells import distances as module
from everyformer.certify.on_cells import refinement
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.distances import Distances, cell_ends, distances
from everyformer.certify.on_cells.refinement import Boxes, most_parts, most_rounds
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box, Grid
from everyformer.targets.trace import _record, trace  # pyright: ignore[reportPrivateUsage]

TWO = Fraction(2)


def examined(f: Expression, grid: Grid, g: np.ndarray, p: Fraction = TWO) -> Distances:
    rows = Cells(grid, None).rows(0, grid.sequences)
    return distances(f, grid, rows, np.ones(len(rows)), p, g)


def on_line(low: float, high: float, K: int) -> Grid:
    return Grid(K, 1, Box((low,), (high,)))


def integral(c: list[Fraction], low: Fraction, high: Fraction) -> Fraction:
    """The integral of the square of the polynomial sum_k c_k x^k."""
    square = [Fraction(0)] * (2 * len(c))
    for i, a in enumerate(c):
        for j, b in enumerate(c):
            square[i + j] += a * b
    return sum(
        (v * (high ** (k + 1) - low ** (k + 1)) / (k + 1) for k, v in enumerate(square)),
        start=Fraction(0),
    )


COEFFICIENTS = st.lists(st.integers(-8, 8), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(
    COEFFICIENTS,
    COEFFICIENTS,
    st.floats(0.05, 0.95),
    st.integers(2, 5),
    st.sampled_from([(0.0, 1.0), (-1.0, 0.7), (1e6, 1e6 + 1e-3)]),
    st.integers(-4, 4),
)
def test_polynomials_with_a_jump_against_the_exact_integral(
    left: list[int],
    right: list[int],
    place: float,
    K: int,
    ends: tuple[float, float],
    g: int,
) -> None:
    """Two polynomials in x - low, the second one beyond a point; in rationals."""
    low, high = ends
    jump = low + place * (high - low)

    def f(x: Any) -> Any:
        t = x - low
        first, second = (
            sum((c * t**k for k, c in enumerate(cs) if k), start=0 * t + cs[0])
            for cs in (left, right)
        )
        return np.where(x > jump, second, first)

    grid = on_line(low, high, K)
    found = examined(_recorded(f), grid, np.full((K, 1, 1), float(g)))
    width, cut = grid.box.widths[0] / K, Fraction(jump) - Fraction(low)
    for k in range(K):
        a, b = k * width, (k + 1) * width
        middle = min(max(cut, a), b)
        exact = Fraction(0)
        for cs, one, other in ((left, a, middle), (right, middle, b)):
            exact += integral([Fraction(cs[0] - g), *map(Fraction, cs[1:])], one, other)
        assert Fraction(float(found.powers[k])) >= exact / width
    if low == 0.0 and cut > 0:
        whole = max(Fraction(v) ** 2 for v in (*found.high.ravel(), *found.low.ravel()))
        assert found.powers.max() <= 4 * float(whole) + 64


SHARP_CASES: dict[str, tuple[Callable[[Any], Any], float]] = {
    "step": (lambda x: np.where(x > 0.3, 1.0, 0.0), 1.1),
    "root at its end": (np.sqrt, 1.1),
    "circle": (lambda x: np.sqrt(1 - x**2), 1.1),
    "x log x": (lambda x: x * np.log(x), 1.1),
    "peak": (lambda x: 1 / (x**2 + 1e-4), 1.15),
    "kink": (lambda x: np.abs(x - 0.3), 1.1),
}


@pytest.mark.parametrize("name", SHARP_CASES)
@pytest.mark.parametrize("p", [Fraction(1), TWO, Fraction(5, 2)])
def test_bounds_are_near_the_integral(name: str, p: Fraction) -> None:
    """Not below a fine midpoint sum by more than its own error, and not far above."""
    function, factor = SHARP_CASES[name]
    f, K = trace(function, 1, 1, [0], [1]), 8
    grid = on_line(0.0, 1.0, K)
    g = function((np.arange(K) + 0.5) / K).reshape(K, 1, 1)
    found = examined(f, grid, g, p)
    x = (np.arange(K * 2**15) + 0.5) / (K * 2**15)
    values = np.abs(function(x).reshape(K, -1) - g[:, 0]) ** float(p)
    means = values.mean(axis=1)
    assert (found.powers >= means * (1 - 1e-6)).all()
    jensen = 1.16 if p == 1 else 1.08  # p-means are bounded by those of even exponents
    assert found.powers.sum() ** (1 / p) <= means.sum() ** (1 / p) * factor * jensen


def test_the_oracle_notices_volumes_that_are_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Halved volumes give bounds below the integral."""
    grid, step = on_line(0.0, 1.0, 2), np.where
    f = trace(lambda x: step(x > 0.3, 1.0, 0.0), 1, 1, [0], [1])
    exact = 0.4  # of [0, 1/2] with g = 0: from 0.3 to 0.5
    right = examined(f, grid, np.zeros((2, 1, 1)))
    assert exact <= right.powers[0] <= exact * 1.3
    shares = refinement._shares  # pyright: ignore[reportPrivateUsage]

    def halved(parts: Boxes, widths: np.ndarray) -> np.ndarray:
        return 0.5 * shares(parts, widths)

    monkeypatch.setattr(refinement, "_shares", halved)
    assert examined(f, grid, np.zeros((2, 1, 1))).powers[0] < exact


@pytest.mark.parametrize("ends", [(0.0, 1.0), (-0.1, 0.2), (1e6, 1e6 + 1e-6)])
def test_parts_cover_their_cell(
    ends: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two dimensions: volumes in rationals, corners of neighbours agree."""
    kept: list[Boxes] = []
    joined = Boxes.joined

    def keep(first: Boxes, second: Boxes) -> Boxes:
        kept.append(joined(first, second))
        return kept[-1]

    monkeypatch.setattr(Boxes, "joined", keep)
    low, high = ends
    middle = low + 0.37 * (high - low)
    grid = Grid(3, 2, Box((low,), (high,)))

    def f(x: Any) -> Any:
        return np.where(x + x[..., ::-1, :] > 2 * middle, 1.0, x - low)

    examined(trace(f, 2, 1, [low], [high]), grid, np.zeros((9, 2, 1)))
    parts, start = kept[-1], cell_ends(grid, Cells(grid, None).rows(0, 9))
    assert len(parts.cell) > 20
    for cell in range(9):
        mine = parts.take(parts.cell == cell)
        exact = [
            [[Fraction(float(v)) for v in row.ravel()] for row in side]
            for side in (mine.low, mine.high)
        ]
        total = sum(
            ((b[0] - a[0]) * (b[1] - a[1]) for a, b in zip(*exact, strict=True)),
            start=Fraction(0),
        )
        sides = [
            Fraction(float(b)) - Fraction(float(a))
            for a, b in zip(start[0][cell].ravel(), start[1][cell].ravel(), strict=True)
        ]
        assert total == sides[0] * sides[1]


def test_nothing_is_bisected_where_the_bound_is_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Boxes, "bisected", fail)
    f = ef.targets.reverse(2).expression
    assert f is not None
    grid = Grid(8, 2, Box((0.0,), (1.0,)))
    rows = Cells(grid, None).rows(0, 64)
    found = distances(f, grid, rows, np.ones(64), TWO, None)
    assert found.powers.sum() / 64 == pytest.approx(2 / (12 * 64))


@pytest.mark.parametrize("balls", [False, True])
def test_functions_without_a_bound_stay_undecided(balls: bool) -> None:
    grid = on_line(0.0, 1.0, 4)
    rows = Cells(grid, None).rows(0, 4)
    functions: list[Callable[[Any], Any]] = [np.log, lambda x: 1 / x]
    functions.append(lambda x: np.sqrt(x - 0.01))
    for function in functions:
        f = _recorded(function)
        found = distances(f, grid, rows, np.ones(4), TWO, np.zeros((4, 1, 1)), balls=balls)
        assert found.powers[0] == math.inf
        assert np.isfinite(found.powers[1:]).all()


def _recorded(function: Any) -> Expression:
    """The program, without the comparison that would refuse functions with nan."""
    return Expression(1, 1, *_record(function, 1, 1, batch=1)[0])


def test_scores_beyond_float64_are_enclosed_as_they_were_written() -> None:
    """Without its maximum exp(1000 x) has no bound; with it softmax has."""

    def softmax(x: Any) -> Any:
        weights = np.exp(1000 * (x - x.max(-2, keepdims=True)))
        return weights / weights.sum(-2, keepdims=True)

    f = trace(softmax, 2, 1, [0], [1])
    assert module.prepared(f) != f
    grid = Grid(4, 2, Box((0.0,), (1.0,)))
    found = examined(f, grid, np.zeros((16, 2, 1)))
    assert np.isfinite(found.powers).all()


def test_long_programs_are_bisected_less() -> None:
    assert most_parts(10, 1) == 2**15
    assert most_parts(10, 100) == 2**13
    assert most_parts(2**14, 1) == 2**10
    assert most_rounds(2**20) == most_parts(2**20, 1) == 0


def test_a_file_is_verified_with_the_bound_it_was_made_with(tmp_path: Any) -> None:
    """The choice of parts is the same."""
    target = ef.Target(lambda x: np.where(x > 0.3, np.sqrt(1 - x**2), x), 1, 1)
    built = ef.construct(target, grid=16)
    built.save(tmp_path)
    bound = built.certificate.bound
    assert bound is not None
    checked = ef.verify(tmp_path)
    assert checked.verdict.name == "PROVED"
    assert checked.proof.real == bound
