"""Step 1: from real tokens to the grid, by feed-forward layers (Lemma 5, Appendix C.1)."""

from fractions import Fraction

import numpy as np

from everyformer.construct.shifts.constants import RAMP_WIDTH, Constants
from everyformer.construct.shifts.feed_forward import phi_layers, units
from everyformer.construct.shifts.step import OWN, ProofStep, cite
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import Stage
from everyformer.numerics.kinds import NumberKind
from everyformer.papers import YUN2020, implements


@implements(YUN2020, "Theorem 3")
def positional_encoding(c: Constants, kind: NumberKind) -> np.ndarray:
    """E: token j is moved up by j - 1 spacings, in the user's coordinates.

    Differs from the paper: the spacing is 1 + delta, not 1 (see `Constants.spacing`), and
    all tokens are lifted by the guard (see `Constants.guard`). A sparse network numbers
    tokens along its path (see `SparseConstants.steps`).
    """
    steps = [Fraction(step * c.spacing, c.K) + c.lifted_by_positions for step in c.steps]
    return kind.array([[step * w for w in c.grid.box.widths] for step in steps])


def read_in(c: Constants, kind: NumberKind) -> ProofStep:
    """Map the user's box to [0, 1]^d, one layer for each coordinate.

        z_i += phi(z_i - low_i),   phi(t) = -low_i                     for t < 0,
                                   (16^h/w_i - 1) t - low_i    for t >= 0
        z_i -= 15/16 ReLU(z_i),    h times, for wide boxes (see `Constants.divisions`)

    In Phi: the first piece is constant. A token below the box stays below 0. In float64 the
    result is lifted by the guard.
    """
    box = c.grid.box
    rows: list[int] = []
    starts: list[Fraction] = []
    slopes: list[Fraction] = []
    lifts: list[Fraction] = []
    for i, (end, width, h) in enumerate(
        zip(box.lows, box.widths, c.divisions, strict=True)
    ):
        low = Fraction(end)
        rows += [i] * (h + 1)
        starts += [-low] + [Fraction(0)] * h
        slopes += [16**h / width - 1] + [Fraction(-15, 16)] * h
        lifts += [c.guard * 16**h - low] + [Fraction(0)] * h
    phi = PiecewiseLinear.repeat(
        len(rows),
        breaks=kind.array([0, 1]),
        closed=(False, False),
        slopes=kind.array([[[0, slope, slope]] for slope in slopes]),
        intercepts=kind.array([[[lift] * 3] for lift in lifts]),
    )
    e = units(kind, c.d)[rows]
    stack = phi_layers(kind, W_1=e, b_1=kind.array(starts), W_2=e, phi=phi)
    return ProofStep(Stage.of("read in", OWN, feed_forward=stack))


@implements(YUN2020, "Lemma 5")
def out_of_range(c: Constants, kind: NumberKind) -> ProofStep:
    """Send coordinates outside [0, 1] far below 0, one layer for each coordinate.

        z_i += phi(z_i),   phi(t) = -t - delta^{-nd}   for t < 0 or t > 1,   0 otherwise

    Differs from the paper: t = 1 is inside. In float64 the result is not -M, M =
    delta^{-nd}, but falls on as M times the distance to the box: where t is so large that
    the jump is lost to rounding, the slope alone sends it below -M. Without a read-in it is
    this layer that lifts by the guard; after one t may be 1 + guard, and a rounding more.
    """
    M = c.out_of_range
    fall = M if c.softened else 0
    layers, d = c.d, c.d
    unit = c.grid.box.is_unit
    high, lift = (Fraction(1), c.guard) if unit else (1 + 2 * c.guard, Fraction(0))
    phi = PiecewiseLinear.repeat(
        layers,
        breaks=kind.array([0, high]),
        closed=(False, True),
        slopes=kind.array([fall - 1, 0, -fall - 1]),
        intercepts=kind.array([lift - M, lift, lift - M + fall * high]),
    )
    e = units(kind, d)
    stack = phi_layers(kind, W_1=e, W_2=e, phi=phi)
    return ProofStep(
        Stage.of("out of range", cite("Lemma 5"), feed_forward=stack), RAMP_WIDTH
    )


@implements(YUN2020, "Lemma 5", "Appendix C.1")
def quantise(c: Constants, kind: NumberKind) -> ProofStep:
    """Round every coordinate down to the grid, one layer for each threshold.

        z_i += phi(z_i - k delta),   phi(t) = -t on [0, delta),  0 otherwise

    d K layers in Theorem 2, n d K in Theorem 3 (k runs over the cells of all positions).
    Differs from the paper: k decreases. Then a coordinate above the window is on the grid
    already, where the four ReLUs cancel exactly in float64, and one below is untouched. The
    window of a last cell is twice as wide: the upper edge belongs to it, and nothing else
    lies there (the empty cell between positions, or what `out_of_range` took away).
    """
    starts = [j * c.spacing for j in range(c.n)] if c.positional else [0]
    cells = [start + k for start in starts for k in range(c.K)][::-1]
    free = {start + c.K - 1 for start in starts if start + c.K not in starts}
    widths = np.tile([2 if cell in free else 1 for cell in cells], c.d)
    phi = PiecewiseLinear.repeat(
        c.d * len(cells),
        breaks=kind.quotient(np.stack([0 * widths, widths], axis=-1), c.K)[:, None, :],
        closed=(False, False),
        slopes=kind.array([0, -1, 0]),
        intercepts=kind.array([0, 0, 0]),
    )
    rows = units(kind, c.d).repeat(len(cells), axis=0)
    thresholds = kind.quotient(-np.tile(np.array(cells), c.d), c.K)
    stack = phi_layers(kind, W_1=rows, b_1=thresholds, W_2=rows, phi=phi)
    result = "Appendix C.1" if c.positional else "Lemma 5"
    return ProofStep(Stage.of("quantise", cite(result), feed_forward=stack), RAMP_WIDTH)
