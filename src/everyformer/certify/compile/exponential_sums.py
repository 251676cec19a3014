"""Heads that sum without a denominator: sum_k e^(s_jk) v_k (G4, with a null token).

One prefix token, the null token, has the constant score c and says exactly 0; all other
prefix tokens are silent. With S = sum_k e^(s_k), over the tokens of the sequence, and W the
entry of W_O, the head adds

    y = W sum_k e^(s_k) v_k / (e^c + S) = kappa / (1 + z) sum_k e^(s_k) v_k,

kappa = W e^-c, z = S e^-c >= 0. Where every s_k is off by at most t <= 1 and every v_k by
at most a, and |v_k| <= V, let g = e^t - 1 <= t + t^2. The sum itself is off by at most
S (g (V + a) + a) and at most S (1 + g) (V + a) in size; and kappa / (1 + z) is 1 up to
|kappa - 1| + z, since kappa - 1 - z is divided by 1 + z >= 1; there z <= S (1 + g) e^-c.

Float64 has scores that are off by t_e + t_r, c among them exactly; its weights are off by
the share `softmax_loss` of each *weight*, since scores are subtracted from the largest with
a relative error, so that small weights are as good as large ones. The loss is that share of
kappa S (1 + g) (V + a), and not of V alone.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import inf, nextafter
from typing import Any

import numpy as np

from everyformer.certify.compile.heads import Scores, Written, heard_scores, softmax_loss
from everyformer.certify.compile.rounded import SILENT, UNDERFLOW, down, up
from everyformer.certify.compile.rows import BlockWeights
from everyformer.certify.compile.unary.reference import balls
from everyformer.certify.compile.values import State, Value
from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma

LARGEST_SCORE = 2**10
"""Of the null token, and of the tokens that are heard, without the sign."""


@dataclass(frozen=True)
class OpenScores:
    """The scores of such a head.

    Attributes:
        scores: Those of the tokens of the sequence; silent ones lie far below c.
        null: The prefix token that is heard.
        c: Its score.
        least: At most every ideal sum S.
        most: At least every ideal sum S.
        spread: The largest difference of two scores that are heard.
    """

    scores: Scores
    null: int
    c: float
    least: Fraction
    most: Fraction
    spread: Fraction


def exponential_sum(block: BlockWeights, head: int, state: State) -> Written:
    """A head that writes sum_k e^(s_jk) v_k, for each column that it uses.

    Raises:
        Undecided: If prefix tokens other than the null token are heard, or it is not quiet.
    """
    found = _open_scores(block, head, state)
    n, P = state.seq_len, state.prefix_len
    t, both = found.scores.moved, found.scores.moved + found.scores.rounded
    if not both <= 1:
        raise block.undecided(f"the scores of a sum are off by {float(both):.2g}")
    loss = softmax_loss(n + P, Fraction(0), found.spread) + 4 * UNIT_ROUNDOFF
    nil = _exp(-Fraction(found.c))
    heard = [heard_scores(state, found.scores, j) for j in range(n)]
    result: Written = []
    for _, entry, said in block.writes(head):
        quiet = state.constants(said, prefix=True)
        if quiet is None or quiet[found.null]:
            raise block.undecided("the null token says something")
        v = state.read(said)
        W = Fraction(entry.stored)
        gap = max(abs(W * end - 1) for end in nil)
        silenced = (1 + abs(W)) * UNDERFLOW
        e = _off(found.most, t, v.ideal_size, v.e, gap, nil[1]) + silenced
        size = found.most * (1 + both + both * both) * v.size
        run = _off(found.most, both, v.ideal_size, v.e + v.r, gap, nil[1])
        run += loss * (1 + gap) * size + silenced
        low = v.low * (found.least if v.low > 0 else found.most)
        high = v.high * (found.most if v.high > 0 else found.least)
        terms = tuple(_summed(state, *row, v) for row in heard)
        value = Value(terms, down(low), up(high), up(e), up(max(run - e, UNDERFLOW)))
        held = state.held[entry.register]
        largest = max(state.on_prefix(said), v.size) * (1 + gamma(2**21))
        garbage = held.garbage + abs(W) * largest + UNDERFLOW
        result.append((entry.register, held.written(value, garbage)))
    return result


def _off(
    S: Fraction, t: Fraction, V: Fraction, a: Fraction, gap: Fraction, nil: Fraction
) -> Fraction:
    """How far the head is off: gap is |kappa - 1|, and nil e^-c."""
    g = t + t * t
    return S * (g * (V + a) + a) + S * (1 + g) * (V + a) * (gap + S * (1 + g) * nil)


def _summed(state: State, heard: list[int], scores: list[Any], v: Value) -> Any:
    algebra, one = state.algebra, Fraction(1)
    parts = [
        (one, algebra.mul(algebra.exp(score), v.terms[k]))
        for k, score in zip(heard, scores, strict=True)
    ]
    return algebra.affine(parts, Fraction(0))


def _open_scores(block: BlockWeights, head: int, state: State) -> OpenScores:
    """Read queries and keys.

    One component has the query 1 and keys that are 0 on the tokens of the sequence: it
    alone decides what prefix tokens score, since all other keys are exactly 0 there, and a
    score that is one number and zeros is exact in every run. Pairs (j, k) are silent if the
    largest score that any run may have lies `SILENT` below c.
    """
    n = state.seq_len
    asked, told = list[Value](), list[Value]()
    null: np.ndarray | None = None
    fixed, sizes = np.zeros((n, n)), np.zeros((n, n))
    low = high = live = moved = rounded = Fraction(0)
    for query, key in block.products(head):
        given, after = state.constants(query), state.constants(key)
        before = state.constants(key, prefix=True)
        if before is None:
            raise block.undecided("the keys of prefix tokens are not known")
        if before.any():
            is_one = given is not None and bool((given == 1.0).all())
            if null is not None or not is_one or after is None or after.any():
                raise block.undecided("the null token has no score of its own")
            null = before
            continue
        q, k = state.read(query), state.read(key)
        asked.append(q)
        told.append(k)
        moved += q.size * k.e + k.size * q.e
        if given is not None and after is not None:
            fixed += np.multiply.outer(given, after)
            sizes += np.abs(np.multiply.outer(given, after))
            continue
        ends = [a * b for a in (q.low, q.high) for b in (k.low, k.high)]
        low, high = low + min(ends), high + max(ends)
        live += q.size * k.size
        rounded += q.size * k.r + k.size * q.r
    if null is None:
        raise block.undecided("a sum has no null token")
    c = float(null.max())
    if not abs(c) <= LARGEST_SCORE or (null > c - SILENT).sum() != 1:
        raise block.undecided("prefix tokens are heard beside the null token")
    slack = gamma(2 * block.components + 6)
    slack *= live + Fraction(float(sizes.max()) * (1 + 2.0**-40))
    reach = float(up(high + moved + rounded + slack + 1))
    silent = fixed + nextafter(reach, inf) < c - SILENT
    heard = ~silent
    loudest = Fraction(float(sizes[heard].max(initial=0.0)) * (1 + 2.0**-40))
    rounded += gamma(len(asked) + block.components + 6) * (live + loudest)
    rounded += 16 * UNIT_ROUNDOFF
    if not live + loudest <= LARGEST_SCORE:
        raise block.undecided("the scores of a sum are too large")
    margin = moved + slack
    counts = heard.sum(axis=1)
    top = Fraction(float(fixed[heard].max(initial=0.0))) + high + margin
    bottom = Fraction(float(fixed[heard].min(initial=0.0))) + low - margin
    least, most = int(counts.min()) * _exp(bottom)[0], int(counts.max()) * _exp(top)[1]
    spread = abs(Fraction(c)) + 2 * (live + loudest) + 2
    scores = Scores(asked, told, up(moved), up(rounded), silent, bottom)
    return OpenScores(scores, int(null.argmax()), c, down(least), up(most), spread)


def _exp(t: Fraction) -> tuple[Fraction, Fraction]:
    """Bounds of e^t."""
    arithmetic = balls()
    with arithmetic.working():
        low, high = arithmetic.ends(arithmetic.exp(arithmetic.constant(t)))
    return Fraction(max(low, 0.0)), Fraction(high)
