"""Heads: mixtures that do not depend on x, and attention (G1 and G4).

docs/constructions/compile.md has the proofs. Each head averages one value for each column
it uses, and writes a multiple of the average to an empty register.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.certify.compile.claims import Attend, Mixture
from everyformer.certify.compile.rounded import SILENT, UNDERFLOW, down, up
from everyformer.certify.compile.rows import BlockWeights, Entry
from everyformer.certify.compile.unary.reference import balls
from everyformer.certify.compile.values import Held, Row, State, Value
from everyformer.certify.rounding import UNIT_ROUNDOFF, gamma

FARTHEST = Fraction(1, 10**6)
"""Weights that are farther from the claimed mixture are refused."""

Written = list[tuple[int, Held]]
"""Registers with what they hold after a slot."""


def scaled(value: Value, entry: Entry) -> Value:
    """A value times what its column of W_O says, with what float64 loses by that."""
    low, high = sorted((entry.ideal * value.low, entry.ideal * value.high))
    factor = abs(Fraction(entry.stored))
    e = factor * value.e + abs(Fraction(entry.stored) - entry.ideal) * value.size
    r = factor * value.r + UNDERFLOW
    if not entry.is_power_of_two:
        r += UNIT_ROUNDOFF * factor * value.size
    return Value(value.terms, down(low), up(high), up(e), up(r))


def multiplied(state: State, terms: tuple[Any, ...], factor: Fraction) -> tuple[Any, ...]:
    """Terms times a number."""
    if factor == 1:
        return terms
    return tuple(state.algebra.affine([(factor, term)], Fraction(0)) for term in terms)


def stored_in(state: State, entry: Entry, value: Value, said: Row) -> Held:
    """The register after a head wrote to it.

    On prefix tokens the head adds an average of what all tokens say.
    """
    held = state.held[entry.register]
    largest = max(state.on_prefix(said), value.size) * (1 + gamma(2**21))
    added = abs(Fraction(entry.stored)) * largest + UNDERFLOW
    return held.written(scaled(value, entry), held.garbage + added)


@dataclass(frozen=True)
class Weighting:
    """Attention weights that do not depend on x, beside those that are claimed.

    Attributes:
        gap: max_j sum_k |weight - claimed|, over the tokens of the sequence.
        lost: What float64 loses, as a share of the largest value.
        heard: Prefix tokens that are not silent.
    """

    gap: Fraction
    lost: Fraction
    heard: np.ndarray


def mixture(block: BlockWeights, head: int, claim: Mixture, state: State) -> Written:
    """A head with constant scores: row j of A mixes the values of all tokens.

    |result - A v| <= e_v + gap |v|, and float64 loses `lost` |v| more; prefix tokens are
    silent, or say exactly 0.
    """
    weighting = _weighting(block, head, claim, state)
    complete = all(sum(row.values()) == 1 for row in claim.rows)
    result: Written = []
    for _, entry, said in block.writes(head):
        value = state.read(said)
        if weighting.heard.any():
            known = state.constants(said, prefix=True)
            if known is None or known[weighting.heard].any():
                raise block.undecided("prefix tokens are heard")
        low, high = value.low, value.high
        if not complete:
            low, high = min(low, Fraction(0)), max(high, Fraction(0))
        rows = {id(row): row for row in claim.rows}  # the rows of a mean are one object
        seen = {k: _mixed(state, row, value, entry.ideal) for k, row in rows.items()}
        terms = tuple(seen[id(row)] for row in claim.rows)
        e = value.e + weighting.gap * value.size + UNDERFLOW
        r = value.r + weighting.lost * value.size + UNDERFLOW
        mixed = Value(terms, low, high, up(e), up(r))
        result.append((entry.register, stored_in(state, entry, mixed, said)))
    return result


def _mixed(
    state: State, row: Mapping[int, Fraction], value: Value, factor: Fraction
) -> Any:
    parts = [(factor * weight, value.terms[k]) for k, weight in row.items()]
    if len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return state.algebra.affine(parts, Fraction(0))


def _weighting(block: BlockWeights, head: int, claim: Mixture, state: State) -> Weighting:
    """Enclose the softmax of constant scores, and compare it with the claim."""
    n, P = state.seq_len, state.prefix_len
    scores, error = np.zeros((n, P + n)), np.zeros((n, P + n))
    products, whole = 0, True
    for query, key in block.products(head):
        asked = state.constants(query)
        before = state.constants(key, prefix=True)
        after = state.constants(key)
        if asked is None or before is None or after is None:
            raise block.undecided("scores are not constant")
        products += 1
        part = asked[:, None] * np.concatenate([before, after])[None, :]
        scores += part
        error += np.abs(part)
        whole = whole and all((a == np.round(a)).all() for a in (asked, before, after))
    # Integers below 2^52 are not rounded.
    exact = whole and bool((error < 2.0**52).all())
    share = 0.0 if exact else float(gamma(products + 4)) * 1.01
    return _enclosed(block, claim, scores, share * error)


def _enclosed(
    block: BlockWeights, claim: Mixture, scores: np.ndarray, error: np.ndarray
) -> Weighting:
    """The weights of scores that are known up to an error."""
    n = len(scores)
    P = scores.shape[1] - n
    best = scores.argmax(axis=1)[:, None]
    below = scores - np.take_along_axis(scores, best, axis=1)
    slack = (error + np.take_along_axis(error, best, axis=1)) * 1.01
    np.put_along_axis(slack, best, 0.0, axis=1)
    slack += np.abs(below) * 2.0**-51
    if not np.isfinite(below).all() or not np.isfinite(slack).all():
        raise block.undecided("scores are too large to be followed")
    audible = below + 2.0 * slack > -float(SILENT)
    heard = np.asarray(audible[:, :P].any(axis=0))
    spread = np.where(audible, np.abs(below) + slack, 0.0).max()
    doubt = np.where(audible, slack, 0.0).max()
    lost = Fraction(0)
    if (audible.sum(axis=1) > 1).any():
        lost = softmax_loss(n + P, Fraction(float(doubt)), Fraction(float(spread)))
    lows, highs = _exponentials(below - slack, below + slack, audible)
    gap = Fraction(0)
    for j, row in enumerate(claim.rows):
        gap = max(gap, _row_gap(lows[j], highs[j], P, row))
    gap = up(gap + UNDERFLOW)
    if not gap <= FARTHEST:
        why = f"weights are {float(gap):.2g} from the claimed mixture"
        raise block.undecided(why)
    return Weighting(gap, up(lost), heard)


def _exponentials(
    low: np.ndarray, high: np.ndarray, audible: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """e^low and e^high, rounded outward; 0 where nothing is heard."""
    lows, highs = np.zeros(low.shape), np.zeros(low.shape)
    known: dict[tuple[float, float], tuple[float, float]] = {(0.0, 0.0): (1.0, 1.0)}
    arithmetic = balls()
    with arithmetic.working():
        for place in map(tuple, np.argwhere(audible).tolist()):
            pair = (float(low[place]), float(high[place]))
            if pair not in known:
                known[pair] = arithmetic.ends(arithmetic.exp(arithmetic.box(*pair)))
            lows[place], highs[place] = known[pair]
    return np.maximum(lows, 0.0), highs


def _row_gap(
    lows: np.ndarray, highs: np.ndarray, P: int, row: Mapping[int, Fraction]
) -> Fraction:
    """sum_k |weight_k - A_jk|, at most, over the tokens after the prefix."""
    heard = np.flatnonzero(highs).tolist()
    low = {k - P: Fraction(float(lows[k])) for k in heard}
    high = {k - P: Fraction(float(highs[k])) for k in heard}
    least, most = sum(low.values()), sum(high.values())
    if least <= 0:
        return Fraction(1)
    total, zero = Fraction(0), Fraction(0)
    for k in {k for k in (*low, *row) if k >= 0}:
        claimed = row.get(k, zero)
        total += max(
            abs(high.get(k, zero) / least - claimed), abs(low.get(k, zero) / most - claimed)
        )
    return up(total)


def softmax_loss(tokens: int, doubt: Fraction, spread: Fraction) -> Fraction:
    """What float64 loses in an average by softmax, as a share of the largest value.

    Scores are off by at most `doubt`, and so is the difference from the largest by
    eta = 2 doubt + u spread; exp is within 4 ulp, so a weight is off by the share
    rho = e^eta (1 + 8u) - 1; then sums over all tokens, a quotient, a product, a sum.

    Raises:
        OverflowError: If eta is above 1/16.
    """
    eta = 2 * doubt + 2 * UNIT_ROUNDOFF * (spread + 2 * doubt)
    if not eta <= Fraction(1, 16):
        msg = f"scores are rounded by {float(eta):.2g}"
        raise OverflowError(msg)
    rho = (1 + eta + eta * eta) * (1 + 8 * UNIT_ROUNDOFF) - 1
    return (1 + rho) / (1 - rho) * (1 + gamma(2 * tokens + 4)) - 1


def attend(block: BlockWeights, head: int, claim: Attend, state: State) -> Written:
    """A head that attends by its scores: sum_k softmax_k(q_j . k_k) v_k.

    If no score moves by more than t, an average of numbers in [low, high] moves by at most
    tanh(t/2) (high - low) <= t/2 (high - low), and never by more than high - low. Tokens
    that constant parts of the scores silence are not heard. In f's own sum they may have a
    part nevertheless (a mask of -1e9): the ideal constants are within `moved` <= 1 of the
    stored ones, so that they lie more than 790 below the largest there too, and whether
    the ideal average has them or not changes it by less than `UNDERFLOW`. Or f has one
    number in place of their scores (`np.where(mask, scores, -1e9)`), `claim.faint`: if that
    lies 800 below every ideal score that is heard, the same holds.
    """
    found = _scores(block, head, state)
    moved, rounded = found.moved, found.rounded
    if claim.everyone and claim.faint is None and moved <= 1:
        found = replace(found, silent=np.zeros_like(found.silent))
    if claim.faint is not None and not claim.faint + SILENT <= found.least:
        why = f"a score of {float(claim.faint):.3g} is not far below those that are heard"
        raise block.undecided(why)
    n, P = state.seq_len, state.prefix_len
    terms_of_scores = [heard_scores(state, found, j, claim.faint) for j in range(n)]
    result: Written = []
    for _, entry, said in block.writes(head):
        v = state.read(said)
        width = v.high - v.low + 2 * v.e
        e = v.e + min(moved / 2, Fraction(1)) * width + 2 * UNDERFLOW
        both = min((moved + rounded) / 2, Fraction(1)) * (width + 2 * v.r)
        lost = gamma(2 * (n + P) + 24) * v.size + UNDERFLOW
        r = v.e + v.r + both + lost - e + UNDERFLOW
        terms = tuple(
            state.algebra.softmax_average(scores, [v.terms[k] for k in heard])
            for heard, scores in terms_of_scores
        )
        average = Value(
            multiplied(state, terms, entry.ideal), v.low, v.high, up(e), up(max(r, v.r))
        )
        result.append((entry.register, stored_in(state, entry, average, said)))
    return result


@dataclass(frozen=True)
class Scores:
    """The scores of a head, as inner products of what rows read.

    Attributes:
        asked: Queries, by component.
        told: Keys, by component.
        moved: How far a score of real arithmetic may be from the ideal one.
        rounded: How much farther one of a float64 run may be.
        silent: Pairs (j, k): whether token j certainly does not hear token k.
        least: At most every ideal score of a pair that is not silent.
    """

    asked: list[Value]
    told: list[Value]
    moved: Fraction
    rounded: Fraction
    silent: np.ndarray
    least: Fraction


def _scores(block: BlockWeights, head: int, state: State) -> Scores:
    """Read queries and keys; prefix tokens must be silent.

    Components whose queries and keys are constants, in every run, decide which tokens are
    silent: those whose constant part lies 2 |live| + 4 slack + 800 below the largest one,
    |live| the most that all other components add to a score, slack what any order of sums
    loses of any score. Let k be silent for j, and l the token with the largest constant
    part. Then score_jk <= score_jl - 800 in real arithmetic, and in float64 the difference
    of the two is below -760: its exponential is 0 there, and less than e^-760 in reals,
    which `UNDERFLOW` counts. The largest score belongs to a token that is not silent. So
    an average is one over the other tokens alone, and the lemma of `attend` needs no more
    than how far *their* scores move. A score is rounded by at most gamma_m sum_c |q_c k_c|;
    for the pairs (j, k) that are not silent that is at most gamma_m (|live| + the largest
    sum of |constant products| of such a pair). The -2^13 of a mask is not among them.
    Constants are exact in every run, so that they add no r of their own.

    Raises:
        Undecided: If prefix tokens may be heard.
    """
    asked, told = list[Value](), list[Value]()
    n, P = state.seq_len, state.prefix_len
    before_scores = np.zeros((n, P))
    fixed_scores, fixed_sizes = np.zeros((n, n)), np.zeros((n, n))
    noise = largest = live = moved = rounded = Fraction(0)
    for query, key in block.products(head):
        q = state.read(query)
        fixed = state.constants(query)
        before, after = state.constants(key, prefix=True), state.constants(key)
        if P and fixed is not None and before is not None:
            part = np.multiply.outer(fixed, before)
            before_scores += part
            noise += Fraction(float(np.abs(part).max())) * gamma(block.components + 4)
        else:
            noise += q.size * state.on_prefix(key)
        if after is not None and not after.any():
            continue
        k = state.read(key)
        asked.append(q)
        told.append(k)
        largest += q.size * k.size
        moved += q.size * k.e + k.size * q.e
        if fixed is not None and after is not None:
            part = np.multiply.outer(fixed, after)
            fixed_scores += part
            fixed_sizes += np.abs(part)
        else:
            live += q.size * k.size
            rounded += q.size * k.r + k.size * q.r
    slack = gamma(2 * block.components + 6) * largest
    if P:
        loudest = Fraction(float(before_scores.max())) + noise + slack
        if not loudest + SILENT <= -largest:
            raise block.undecided("prefix tokens are heard")
    needed = float(up(2 * live + 4 * slack + SILENT)) * 1.01
    silent = fixed_scores - fixed_scores.max(axis=1, keepdims=True) < -needed
    heard = Fraction(float(fixed_sizes[~silent].max()) * (1 + 2.0**-40))
    rounded += gamma(len(asked) + block.components + 6) * (live + heard)
    rounded += 16 * UNIT_ROUNDOFF
    quietest = Fraction(float(fixed_scores[~silent].min()))
    least = quietest - live - moved - slack
    return Scores(asked, told, moved, rounded, silent, least)


def heard_scores(
    state: State, found: Scores, j: int, faint: Fraction | None = None
) -> tuple[list[int], list[Any]]:
    """The tokens that token j may hear, and the ideal scores.

    With `faint`, all other tokens after them, with that number as their score.
    """
    heard = np.flatnonzero(~found.silent[j]).tolist()
    algebra, one = state.algebra, Fraction(1)
    scores = [
        algebra.affine(
            [
                (one, algebra.mul(q.terms[j], k.terms[m]))
                for q, k in zip(found.asked, found.told, strict=True)
            ],
            Fraction(0),
        )
        for m in heard
    ]
    if faint is not None:
        others = np.flatnonzero(found.silent[j]).tolist()
        return [*heard, *others], scores + [algebra.constant(faint)] * len(others)
    return heard, scores
