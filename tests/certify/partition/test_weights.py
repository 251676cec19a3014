"""Weights of anchors and their derivatives: against Arb, at points and as suprema."""

from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.certify.partition.weights import WindowWeights, reach_of, window_weights

DECAYS = ["1/4", "3/4", "1", "2", "3", "12"]


def exactly(
    D: Fraction, places: list[int], t: Fraction
) -> tuple[list[flint.arb], list[flint.arb], list[flint.arb], flint.arb]:
    """W, W', W'' by the quotient rule on sums of e^(-D (j-t)^2), and (E Y)''; in Arb."""

    def ball(value: Fraction | int) -> flint.arb:
        exact = Fraction(value)
        return flint.arb(flint.fmpq(exact.numerator, exact.denominator))

    w = [ball(-D * (j - t) ** 2).exp() for j in places]
    w1 = [ball(2 * D * (j - t)) * a for j, a in zip(places, w, strict=True)]
    w2 = [ball((2 * D * (j - t)) ** 2 - 2 * D) * a for j, a in zip(places, w, strict=True)]
    z, z1, z2 = (sum(row, start=flint.arb(0)) for row in (w, w1, w2))
    first = [(a1 - a * z1 / z) / z for a, a1 in zip(w, w1, strict=True)]
    second = [
        (a2 - 2 * d * z1 - a * z2 / z) / z for a, a2, d in zip(w, w2, first, strict=True)
    ]
    bend = sum((j * c for j, c in zip(places, second, strict=True)), start=flint.arb(0))
    return [a / z for a in w], first, second, bend


def places_of(found: WindowWeights, cell: int, K: int, m: int) -> list[int]:
    window = range(-found.reach, found.reach + 2)
    return [j for j in window if -m <= cell + j <= K + m]


@pytest.mark.parametrize("D", DECAYS)
def test_rows_and_suprema_are_those_of_arb(D: str) -> None:
    K, m, parts, decay = 6, 1, 3, Fraction(D)
    found = window_weights(decay, K, m, parts)
    assert found is not None
    R, rows = found.reach, found.rows
    rng = np.random.default_rng(0)
    for cell in (0, 2, K - 1):
        places = places_of(found, cell, K, m)
        inside = [j + R for j in places]
        kind = found.kinds[cell]
        for part in range(parts):
            t = Fraction(2 * part + 1, 2 * parts)
            exact = exactly(decay, places, t)
            for own, true, off in zip(
                (rows.values, rows.slopes), exact[:2], rows.off, strict=True
            ):
                row = own[kind, part]
                gaps = [
                    abs(flint.arb(float(row[k])) - a)
                    for k, a in zip(inside, true, strict=True)
                ]
                assert sum(gaps, start=flint.arb(0)) <= off
                assert not np.delete(row, inside).any()
        for number in rng.integers(0, 1001, 20):
            *exact, bend = exactly(decay, places, Fraction(int(number), 1000))
            for sups, true in zip(rows.largest, exact, strict=True):
                assert all(abs(a) <= sups[k] for k, a in zip(inside, true, strict=True))
            assert abs(bend) <= rows.bend


@pytest.mark.parametrize("D", DECAYS[:-1])
def test_suprema_are_sharp(D: str) -> None:
    found = window_weights(Fraction(D), 16, 4, 1)
    assert found is not None
    R = found.reach
    w = np.exp(-float(Fraction(D)) * np.square(np.arange(-R, R + 2) - 0.0))
    assert found.rows.largest[0, R] <= 1.01 * w[R] / w.sum()
    ts = np.linspace(0, 1, 501)[:, None]
    w = np.exp(-float(Fraction(D)) * np.square(np.arange(-R, R + 2) - ts))
    w /= w.sum(axis=1, keepdims=True)
    gap = np.arange(-R, R + 2) - (w * np.arange(-R, R + 2)).sum(axis=1, keepdims=True)
    spread = (w * gap**2).sum(axis=1, keepdims=True)
    second = 4 * float(Fraction(D)) ** 2 * w * (gap**2 - spread)
    assert found.rows.largest[2].max() <= 1.5 * np.abs(second).max()


@settings(max_examples=10, deadline=None)
@given(
    st.fractions(Fraction(1, 10), Fraction(20), max_denominator=40),
    st.integers(1, 30),
    st.integers(1, 5),
)
def test_what_a_window_leaves_out(D: Fraction, K: int, m: int) -> None:
    found = window_weights(D, K, m, 2)
    assert found is not None
    anchors = np.arange(-m, K + m + 1)
    for cell in {0, K // 2, K - 1}:
        t = cell + np.linspace(0, 1, 33)[:, None]
        w = np.exp(-float(D) * (np.square(anchors - t) - np.square(t - np.rint(t))))
        w /= w.sum(axis=1, keepdims=True)
        outside = (anchors < cell - found.reach) | (anchors > cell + 1 + found.reach)
        assert w[:, outside].sum(axis=1).max(initial=0.0) <= float(found.lost) + 1e-15


def test_a_window_that_would_be_too_wide() -> None:
    assert window_weights(Fraction(1, 1000), 400, 40, 1) is None
    assert reach_of(Fraction(1, 1000), 20) == 20  # all anchors there are
    tiny = window_weights(Fraction(1, 1000), 8, 40, 1)
    assert tiny is not None
    assert tiny.lost == 0
