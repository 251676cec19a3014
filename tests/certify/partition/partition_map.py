"""The average over anchors in plain float64: what the network has to compute."""

from fractions import Fraction

import numpy as np

from everyformer.certify.partition.lattice import Lattice
from everyformer.targets.box import Box, Grid
from everyformer.targets.target import Target


def average(target: Target, partition: Lattice, points: np.ndarray) -> np.ndarray:
    """g(z) = sum_v f(v) e^(-beta |z-v|^2) / sum_v e^(-beta |z-v|^2), one axis at a time.

    Args:
        target: f.
        partition: The lattice, on the target's domain.
        points: (count, n, d), in the target's domain.

    Returns:
        (count, n, d).
    """
    N, m, K = partition.size, partition.margin, partition.grid.cells
    numbers = np.arange(-m, K + m + 1)
    box = partition.grid.box
    lows = np.tile(np.array(box.lows), partition.grid.seq_len)
    steps = np.array([float(h) for h in partition.steps])
    axes = [lows[k] + steps[k] * numbers for k in range(N)]
    anchors = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
    values = target(anchors.reshape(-1, *points.shape[1:])).reshape(anchors.shape)
    places = points.reshape(-1, N)
    result = values[None]
    for k in range(N):
        gaps = (places[:, k, None] - axes[k]) / steps[k]
        weights = np.exp(-float(partition.D) * gaps**2)
        weights /= weights.sum(axis=1, keepdims=True)
        if k == 0:
            result = np.tensordot(weights, values, axes=1)
        else:
            result = np.einsum("bk,bk...->b...", weights, result)
    return result.reshape(points.shape)


def waves(n: int, d: int = 1, domain: tuple[float, float] = (0.0, 1.0)) -> Target:
    """sin(3 x_ij + j) mean(X) + x_ij^2 / 2."""

    def function(x: np.ndarray) -> np.ndarray:
        positions = np.arange(n)[:, None]
        mean = x.mean(axis=(-2, -1), keepdims=True)
        return np.sin(3 * x + positions) * mean + x**2 / 2

    return Target(function, n, d, domain=[domain], name="waves")


def lattice(target: Target, K: int, D: str | int, m: int) -> Lattice:
    return Lattice(Grid(K, target.seq_len, target.domain), Fraction(D), m)


def unit_lattice(n: int, K: int, D: str | int, m: int) -> Lattice:
    return Lattice(Grid(K, n, Box((0.0,), (1.0,))), Fraction(D), m)


def errors_sampled(
    target: Target, partition: Lattice, count: int = 2000, seed: int = 0
) -> np.ndarray:
    """|g - f| at random points of the domain, (count, N)."""
    rng = np.random.default_rng(seed)
    low, high = np.array(target.domain.lows), np.array(target.domain.highs)
    shape = (count, target.seq_len, target.d_model)
    points = low + (high - low) * rng.uniform(0, 1, shape)
    return np.abs(average(target, partition, points) - target(points)).reshape(count, -1)
