"""Attention layers in front of everything else: what they add, if it is a constant.

A head with W_Q = 0, b_Q = 0 and W_K = 0 has scores 0 whatever the tokens are, so softmax
and hardmax weigh all n of them by 1/n. With W_V = 0 every value is b_V. So the layer adds

    E_i = sum over heads of  (1/n) (sum_j gain_{i-j}) W_O b_V

to token i, in real arithmetic exactly. A float64 run makes, in each term of that sum, at
most n + m + h + 8 roundings: 1/n, its products with gain, b_V and W_O, and the sums over
tokens, coordinates of the head and heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.overflow import UNDERFLOW
from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import StageWeights, Weights, to_fractions


@dataclass(frozen=True)
class Addition:
    """A constant that is added to one coordinate of one token.

    Attributes:
        amount: What is added, in real arithmetic.
        rounding: By how much a float64 run may add something else.
    """

    amount: Fraction
    rounding: Fraction


Additions = tuple[Addition, ...]
"""Everything that is added to one coordinate of one token, in order."""


def additions(
    weights: Weights, stages: Sequence[StageWeights]
) -> tuple[dict[tuple[int, int], Additions], int]:
    """What is added to each coordinate of each token before the first feed-forward layer.

    Args:
        weights: The network, for its positions.
        stages: The stages in front of the grid.

    Returns:
        By token and coordinate; and how many stages of attention were read.

    Raises:
        Undecided: If an attention layer there adds something that is not constant.
    """
    n, d = weights.seq_len, weights.d_model
    places = [(j, i) for j in range(n) for i in range(d)]
    found: dict[tuple[int, int], Additions] = dict.fromkeys(places, ())
    if weights.positions is not None:
        E = weights.positions
        found = {place: (Addition(E[place], Fraction(0)),) for place in places}
    count = 0
    for stage in stages:
        if stage.half != "attention":
            break
        for layer in range(stage.layers):
            amount, rounding = constant_layer(stage, layer, n)
            for place in places:
                found[place] += (Addition(amount[place], rounding[place]),)
        count += 1
    return found, count


def constant_layer(
    stage: StageWeights, layer: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """E_i of one layer, and the rounding of each entry; Fractions of shape (n, d).

    Raises:
        Undecided: If a head that writes anything looks at the tokens.
    """
    if "mask" in stage.arrays and not stage.arrays["mask"][layer].all():
        raise Undecided(stage.name, "there is sparse attention before the grid is reached")
    arrays = {name: to_fractions(array[layer]) for name, array in stage.arrays.items()}
    h, d, m = arrays["W_O"].shape
    total = np.full((n, d), Fraction(0), dtype=object)
    sizes = total.copy()
    for head in range(h):
        W_O = arrays["W_O"][head]
        if not W_O.any():
            continue
        for name in ("W_Q", "b_Q", "W_K", "W_V"):
            if arrays[name][head].any():
                why = (
                    f"there is attention before the grid is reached, and {name} of head "
                    f"{head + 1} in layer {layer} is not 0: it adds no constant"
                )
                raise Undecided(stage.name, why)
        if "b_V" not in arrays:
            continue  # every value is 0
        b_V = arrays["b_V"][head]
        gain = np.full(2 * n - 1, Fraction(1), dtype=object)
        if "gain" in arrays:
            gain = arrays["gain"][head]
        rows = np.array([gain[i : i + n].sum() for i in range(n)], dtype=object)
        spans = np.array([abs(gain[i : i + n]).sum() for i in range(n)], dtype=object)
        total += np.outer(rows, W_O @ b_V) / n
        sizes += np.outer(spans, abs(W_O) @ abs(b_V)) / n
    under = (sizes != 0).astype(object) * Fraction(UNDERFLOW)
    return total, sizes * gamma(n + m + h + 8) + under


def carried_rounding(size: Fraction, added: Additions) -> tuple[Fraction, Fraction]:
    """The sum of all additions, and how far x plus it may be off in float64.

    Args:
        size: The largest |x|.
        added: What is added to x.
    """
    # x is rounded to float64: by half of its last bit, or by 2^-1075 near 0
    amount, carried = Fraction(0), max(UNIT_ROUNDOFF * size, Fraction(UNDERFLOW))
    for step in added:
        amount += step.amount
        carried += step.rounding
        if step.amount or step.rounding:
            carried += UNIT_ROUNDOFF * (size + abs(amount) + carried)
    return amount, carried
