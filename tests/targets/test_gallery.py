"""The moduli of continuity of the gallery are true, and least where they are said to be."""

from fractions import Fraction

import numpy as np
import pytest

from everyformer.errors import TargetError
from everyformer.targets import GALLERY, centring, smooth_bump, smooth_rank, soft_attention
from everyformer.targets.target import Target

SHAPES = [(2, 1), (3, 1), (4, 1), (2, 2), (3, 2)]


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_modulus_holds(name: str, n: int, d: int) -> None:
    target = GALLERY[name](n, d)
    rng = np.random.default_rng(1)
    x = rng.random((20_000, n, d))
    x[::3] = np.round(x[::3] * 4) / 4  # corners, ties and edges as well
    for radius in (0.5, 0.1, 0.01):
        step = rng.choice([-1.0, 0.0, 1.0], x.shape, p=[0.45, 0.1, 0.45]) * radius
        y = np.clip(x + step, 0, 1)
        limit = target.modulus_of_continuity(radius)
        assert limit is not None
        assert np.abs(target(x) - target(y)).max() <= float(limit) * (1 + 1e-12)


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_equivariance_is_as_declared(name: str, n: int, d: int) -> None:
    target = GALLERY[name](n, d)
    x = np.random.default_rng(2).random((50, n, d))
    order = [1, 0, *range(2, n)]
    gap = np.abs(target(x[:, order]) - target(x)[:, order]).max()
    if target.equivariant:
        assert gap <= 1e-12
    elif n > 2 or name not in ("reverse", "shift"):  # these two swap two tokens
        assert gap > 0.1


def attained(target: Target, x: list[float], y: list[float], radius: float) -> float:
    """The largest change between two points of distance radius, over the modulus."""
    a, b = (np.array(v)[None, :, None] for v in (x, y))
    assert np.abs(a - b).max() == pytest.approx(radius)
    limit = target.modulus_of_continuity(radius)
    assert limit is not None
    return float(np.abs(target(a) - target(b)).max() / float(limit))


def test_least_constants_are_attained() -> None:
    r = 1e-3
    assert attained(centring(3), [0.5, 0.5, 0.5], [0.5 + r, 0.5 - r, 0.5 - r], r) == (
        pytest.approx(1)
    )
    half = [0.5 - r / 2, 0.5 + r / 2]
    assert attained(smooth_rank(2), half, half[::-1], r) == pytest.approx(1)
    # Var_p = 1/4 at (0, 1); the query moves up, the keys move up with it.
    assert attained(soft_attention(2), [0, 1 - r], [r, 1], r) == pytest.approx(1, abs=2e-3)
    N = 3
    t = 1 - np.arctan(np.sqrt(2 * N - 1)) / np.pi  # cot^2(pi t) = 1/(2N-1), falling side
    bump = attained(smooth_bump(N), [t - r / 2] * N, [t + r / 2] * N, r)
    assert bump == pytest.approx(1, abs=1e-4)


def test_bump_vanishes_on_the_boundary() -> None:
    x = np.random.default_rng(3).random((100, 2, 2))
    x[:, 1, 0] = np.arange(100) % 2
    assert np.abs(smooth_bump(2, 2)(x)).max() < 1e-30


@pytest.mark.parametrize("name", GALLERY)
def test_impossible_sizes_are_refused(name: str) -> None:
    for n, d in ((0, 1), (2, 0), (-1, 2)):
        with pytest.raises(TargetError, match="is not an integer >= 1"):
            GALLERY[name](n, d)


def test_exact_constants() -> None:
    assert centring(3).lipschitz == Fraction(4, 3)
    assert soft_attention(2, 2).lipschitz == Fraction(3, 2)
