"""Positions made by one attention layer with a gain (Luo et al. 2022), instead of E.

The letters are those of the papers; tokens are rows. See docs/constructions/urpe.md.
"""

from fractions import Fraction

import numpy as np

from everyformer.construct.shifts.constants import Constants
from everyformer.construct.shifts.step import ProofStep, cite
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.numerics.kinds import NumberKind
from everyformer.papers import LUO2022, implements

LIFT = Fraction(1, 2**44)
"""By how much, relatively, float64 positions are too large, so that none is too small."""


@implements(LUO2022, "Proposition 4")
def position_gain(n: int) -> np.ndarray:
    """c_k for the offsets k = 1 - n .. n - 1: 1 for k >= 1, else 0.

    C is Toeplitz, strictly lower triangular. Where softmax gives 1/n everywhere,

        (softmax * C) 1 = ((i - 1) / n)_i,

    whose entries are all distinct: the position-aware condition.

    Example:
        >>> position_gain(3)
        array([0, 0, 0, 1, 1])
    """
    return (np.arange(1 - n, n) >= 1).astype(int)


@implements(LUO2022, "Theorem 3", "Proposition 4")
def position_layer(c: Constants, kind: NumberKind) -> ProofStep:
    """Add E_i = (i - 1) spacing delta w to token i, w the box widths: one layer, one head.

        W_Q = W_K = 0, b_Q = 0      softmax (and hardmax, by ties) is 1/n everywhere
        gain = `position_gain`      row i of softmax * C sums to (i - 1)/n
        W_V = 0, b_V = 1            every value is 1
        W_O = n spacing delta w     so token i moves by (i - 1) spacing delta w

    In float64 1/n and the sum round, and a token on the lower edge of its position must not
    fall below it: there the next window is another position's. So W_O is taken 1 + 2^-44
    times as large, which outweighs n + 4 roundings; cells move up by less than a ramp. The
    second head lifts all tokens by the guard (`Constants.guard`): it has gain 1, and W_O is
    the guard. Where a read-in does that, its gain and W_O are 0.
    """
    n, d, h, m = c.n, c.d, 2, 1
    lift = 1 + LIFT if c.softened else Fraction(1)
    steps = [lift * n * c.spacing * c.delta * width for width in c.grid.box.widths]
    guard = c.lifted_by_positions
    zeros = np.broadcast_to(kind.array(0), (1, h, m, d))
    stack = AttentionStack(
        W_Q=zeros,
        b_Q=zeros[..., 0],
        W_K=zeros,
        W_V=zeros,
        W_O=kind.array([[[[step] for step in steps], [[guard]] * d]]),
        b_V=kind.array([[[1], [1 if guard else 0]]]),
        gain=kind.array([[position_gain(n), [1 if guard else 0] * (2 * n - 1)]]),
    )
    return ProofStep(
        Stage.of("position layer", cite("Theorem 3", LUO2022), attention=stack)
    )
