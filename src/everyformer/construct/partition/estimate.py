"""d_p(f, g) about, in plain float64: which of several lattices deserves a close look.

Nothing is proved from it.
"""

import math
from fractions import Fraction

import numpy as np

from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.samples import Samples

MAX_WEIGHTS = 2**22
"""Weights of an axis, at most."""


def distance_sampled(samples: Samples, lattice: Lattice, p: Fraction | None) -> float:
    """The p-th mean of |g - f| over the centres of all parts, the largest for p = None.

    Infinite where weights would be too many, or f is not known.
    """
    K, N, m, fine = lattice.grid.cells, lattice.size, lattice.margin, samples.fine
    numbers = np.arange(-m, K + m + 1)
    if K * fine * len(numbers) > MAX_WEIGHTS:
        return math.inf
    points = (np.arange(K * fine) + 0.5) / fine
    gaps = points[:, None] - numbers
    # The nearest anchor has weight 1: nothing underflows for a large D.
    near = np.square(points - np.rint(points))[:, None]
    weights = np.exp(float(lattice.D) * (near - np.square(gaps)))
    weights /= weights.sum(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        f, centres = (
            ends[0] / 2 + ends[1] / 2 for ends in (samples.anchors, samples.centres[0])
        )
        g = f.reshape((len(numbers),) * N + (N,))
        for _ in range(N):  # the first axis becomes the last but for the entries
            g = np.moveaxis(np.tensordot(weights, g, axes=(1, 0)), 0, -2)
        apart = np.abs(g.reshape(-1, N) - centres)
        size = apart.max() if p is None else (apart ** float(p)).mean() ** float(1 / p)
    return float(size) if math.isfinite(size) else math.inf
