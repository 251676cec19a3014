"""Where a function is compared with its trace.

Inside the box, and at the places where programs decide something: corners, faces, next to
them, equal tokens, nearly equal ones, whole numbers, halves, powers of two.
"""

import numpy as np

INSIDE = 2048
"""Random sequences."""

SPECIAL = 256
"""Sequences of each special kind."""


def inside(
    rng: np.random.Generator, count: int, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Random sequences of the box, shape (count, n, d)."""
    return _between(low, high, rng.random((count, *low.shape)))


def special(
    rng: np.random.Generator, count: int, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Sequences of the box where programs are likely to decide something.

    Args:
        rng: A source of random numbers.
        count: How many of each kind.
        low: (n, d), the lower ends of the box.
        high: The upper ends.

    Returns:
        Shape (_, n, d); `count` sequences of each of 7 kinds, and at most as many corners.

    Example:
        >>> ends = np.zeros((1, 1)), np.ones((1, 1))
        >>> found = special(np.random.default_rng(0), 16, *ends).ravel()
        >>> {0.0, 5e-324, 0.25, 0.5, 1 - 2**-53, 1.0} <= set(found.tolist())
        True
    """
    shape = (count, *low.shape)
    anywhere = rng.random(shape)
    corners = _corners(rng, count, low.shape)
    ends = rng.integers(0, 2, shape)
    faces = np.where(rng.random(shape) < 0.3, ends, anywhere)
    lattice = rng.integers(0, 9, shape) / 8
    constant = np.broadcast_to(np.arange(count)[:, None, None] % 9 / 8, shape)
    small = 2.0 ** -rng.integers(0, 60, shape)
    small = np.where(rng.random(shape) < 0.5, small, 1 - small)
    equal = np.broadcast_to(anywhere[:, :1], shape)
    equal = np.where(rng.random((count, 1, 1)) < 0.5, equal[..., :1], equal)
    units = np.concatenate([corners, faces, lattice, constant, small, equal])
    points = _between(low, high, units)
    beside = np.nextafter(points, rng.choice([-np.inf, np.inf], points.shape))
    beside = beside[rng.permutation(len(beside))[: 2 * count]]
    inward = np.nextafter(_between(low, high, corners), (low + high) / 2)
    values = rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0], shape)
    found = np.concatenate([points, beside, inward, values])
    return np.clip(found, low, high)


def _corners(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> np.ndarray:
    """All corners of the unit cube, or `count` of them with the first and the last."""
    size = int(np.prod(shape))
    if 2**size <= count:
        bits = np.arange(2**size)[:, None] >> np.arange(size) & 1
    else:
        bits = rng.integers(0, 2, (count, size))
        bits[0], bits[1] = 0, 1
    return bits.reshape(-1, *shape).astype(np.float64)


def _between(low: np.ndarray, high: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.clip(low * (1 - unit) + high * unit, low, high)
