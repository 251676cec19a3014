"""What a network really does, measured: the judge of a verdict that may be false.

d_p(f, g)^p = vol * E |f(X) - g(X)|_p^p is estimated with m random points in every cell of
the grid. The mean over the cells is unbiased, whatever the network does; its standard error
comes from the spread inside the cells.
"""

from dataclasses import dataclass

import numpy as np

import everyformer as ef
from everyformer.certify.certificate import Certificate

POINTS, EXACT_POINTS = 2048, 128
"""Of float64 runs, and of rational weights, which are run in rationals."""

CERTAIN = 6.0
"""Standard errors that count as certainty: 10,000 measurements, none wrong by chance."""


@dataclass(frozen=True)
class Measured:
    """d_p(f, g) of a float64 run, as an interval that chance does not leave.

    Attributes:
        low: The distance is at least this.
        high: And probably at most this; in the sup norm, unknown (infinite).
    """

    low: float
    high: float


def measure(
    certificate: Certificate, network: ef.Network, rng: np.random.Generator
) -> Measured:
    """Compare a network with the program of f that a certificate holds."""
    f = certificate.statement.expression
    assert f is not None, "the attack keeps to traced functions"
    n, d, K = certificate.seq_len, certificate.d_model, certificate.grid or 4
    points = EXACT_POINTS if network.is_exact else POINTS
    cells = K ** (n * d)
    if cells > points:
        corner = rng.integers(0, K, (points, n, d))
    else:
        corner = np.indices((K,) * (n * d)).reshape(n * d, -1).T.reshape(cells, n, d)
    m = max(2, points // len(corner))
    unit = (corner[:, None] + rng.random((len(corner), m, n, d))) / K
    low = np.asarray(certificate.box.lows, np.float64)
    high = np.asarray(certificate.box.highs, np.float64)
    x = np.clip(low + (high - low) * unit, low, high).reshape(-1, n, d)
    with np.errstate(all="ignore"):
        wanted = f(x)
        run = network(x, executor="exact" if network.is_exact else "reference")
        gap = np.abs(wanted - np.asarray(run))
    # Nothing can be proved where f is not defined; a network's NaN is infinitely far off.
    gap = np.where(np.isnan(gap), np.inf, gap)
    if certificate.p is None:
        return Measured(float(gap.max()), np.inf)
    p = float(certificate.p)
    volume = float(certificate.box.volume(n))
    with np.errstate(all="ignore"):
        powers = (gap**p).sum(axis=(1, 2)).reshape(len(corner), m)
    if not np.isfinite(powers).all():
        return Measured(np.inf, np.inf)
    if cells > points:
        spread = powers.std() / np.sqrt(powers.size)
    else:
        spread = np.sqrt((powers.var(axis=1, ddof=1) / m).sum()) / len(corner)
    mean = float(powers.mean())
    ends = [max(0.0, mean - CERTAIN * spread), mean + CERTAIN * spread]
    return Measured(*((volume * end) ** (1 / p) for end in ends))
