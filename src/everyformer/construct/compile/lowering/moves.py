"""Heads whose scores do not depend on x, and attention.

    mean        q = 1,                  k = -2^40 isprefix
    gather tau  q = (2 B tau(j), -B),   k = (pos, pos2)    -B (tau(j) - k)^2 + B tau(j)^2
    mix A       q_k = log A_jk,         k_k = hot_k        (-2^13 for 0)
    attend      q = (.., 1),            k = (.., -2^40 isprefix)
    sum         q = (.., 1),            k = (.., c null - 2^40 other prefix tokens)

With B = 1024 the scores of gathers are integers below 2^53, so that weights are exactly 0
and 1. A mixture whose row sums differ gives what is missing to the first prefix token,
where all values are 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log
from typing import Any

from everyformer.construct.compile.lowering.constants import SILENCE, Constants
from everyformer.construct.compile.lowering.gadgets import ONE, ZERO, Reading
from everyformer.errors import ToleranceError

B = 1024
"""Gap between the score of the token that a gather chooses and all others."""

NEVER = Fraction(-(2**13))
"""Score, at least so far below the others, of a token with weight 0."""

MOST = 138
"""Of c, so that e^c is below 2^200."""

Scores = tuple[tuple[Reading, ...], tuple[Reading, ...]]
Matrix = Sequence[Sequence[Fraction]]


def silence(constants: Constants) -> Scores:
    """A component that keeps prefix tokens from being heard; none without such tokens."""
    if not constants.has_prefix:
        return (), ()
    return (Reading({}, ONE),), (Reading.of(constants.isprefix(), -SILENCE),)


def mean_scores(constants: Constants) -> Scores:
    """Equal scores on data tokens."""
    queries, keys = silence(constants)
    return queries or (Reading({}, ONE),), keys or (Reading({}),)


def affine_map(tau: Sequence[int]) -> tuple[int, int] | None:
    """(s, c) with tau(j) = s j + c for all j, or None.

    Example:
        >>> affine_map([3, 2, 1, 0]), affine_map([1, 2, 0])
        ((-1, 3), None)
    """
    slope = tau[1] - tau[0] if len(tau) > 1 else 0
    if all(value == slope * j + tau[0] for j, value in enumerate(tau)):
        return slope, tau[0]
    return None


def gather_scores(constants: Constants, tau: Sequence[int]) -> Scores:
    """Token tau(j) alone is heard."""
    line = affine_map(tau)
    if line is None:
        chosen = Reading.of(constants.constant("to", tau))
    else:
        slope, start = line
        chosen = Reading.of(constants.pos(), slope) if slope else Reading({})
        chosen = Reading(chosen.terms, Fraction(start))
    queries = (chosen * (2 * B), Reading({}, Fraction(-B)))
    return queries, (Reading.of(constants.pos()), Reading.of(constants.pos2()))


def attend_scores(
    constants: Constants,
    queries: Sequence[Reading],
    keys: Sequence[Reading],
    *,
    whole: bool = False,
) -> Scores:
    """q . k. A constant in a key adds the same to all scores of a query.

    It is left out, unless scores are wanted as a whole: f may have others beside them.
    """
    more_queries, more_keys = silence(constants)
    bare = [constants.bare(key) if whole else Reading(key.terms) for key in keys]
    return (*queries, *more_queries), (*bare, *more_keys)


def null_score(n: int, highest: Fraction, size: Fraction, accuracy: Fraction) -> int:
    """c, with S^2 V e^-c below the accuracy: S <= n e^highest, V the size of values.

    Raises:
        ToleranceError: If e^c would be too large for a weight.
    """
    log_size = log(max(size, ONE)) - log(accuracy)
    c = ceil(2 * (log(n) + float(highest)) + log_size) + 1
    if c > MOST:
        msg = (
            f"a sum of exponentials of scores up to {float(highest):g} needs a null token "
            f"with the score {c}, more than {MOST}, for an error of {float(accuracy):.1e}. "
            "Divide by the sum of the weights, or make the scores smaller."
        )
        raise ToleranceError(msg)
    return max(c, 1)


def sum_scores(
    constants: Constants, queries: Sequence[Reading], keys: Sequence[Reading], c: int
) -> Scores:
    """q . k on data tokens, c on the null token."""
    null = Reading.of(constants.null(), c + SILENCE)
    one = null + Reading.of(constants.isprefix(), -SILENCE)
    return (*queries, Reading({}, ONE)), (*keys, one)


@dataclass(frozen=True)
class Mixture:
    """A head that averages with the rows of A >= 0, over S.

    Attributes:
        scores: Its queries and keys.
        total: S, what the average is multiplied with.
        claim: A/S, for the verifier.
        has_null: Whether a prefix token with value 0 is heard.
    """

    scores: Scores
    total: Fraction
    claim: dict[str, Any]
    has_null: bool


def row_total(A: Matrix) -> tuple[Fraction, bool]:
    """S, and whether some row sums to less."""
    sums = [sum(row, ZERO) for row in A]
    largest = max(sums)
    return largest, min(sums) < largest


def mixture(constants: Constants, A: Matrix) -> Mixture:
    """Weights A_jk/S, as softmax of their logarithms.

    A row's scores are relative to its largest entry: entries that are equal get score 0.
    """
    n = len(A)
    total, has_null = row_total(A)
    rows = [[entry / total for entry in row] for row in A]
    missing = [ONE - sum(row, ZERO) for row in rows]
    peaks = [max(*row, rest) for row, rest in zip(rows, missing, strict=True)]

    def query(column: Sequence[Fraction]) -> Reading:
        terms = {}
        for j, (weight, peak) in enumerate(zip(column, peaks, strict=True)):
            score = NEVER if not weight else Fraction(log(weight / peak))
            if score:
                terms[constants.hot(j)] = score
        return Reading(terms)

    columns: dict[tuple[Fraction, ...], list[int]] = {}
    for k in range(n):
        columns.setdefault(tuple(row[k] for row in rows), []).append(k)
    queries, keys = [], []
    for column, tokens in columns.items():
        form = query(column)
        if form.terms:
            queries.append(form)
            keys.append(Reading({constants.hot(k): ONE for k in tokens}))
    if has_null:
        queries.append(query(missing))
        keys.append(Reading.of(constants.null()))
    more_queries, more_keys = silence(constants)
    if has_null and more_keys:
        others = more_keys[0] + Reading.of(constants.null(), SILENCE)
        more_queries, more_keys = (more_queries, (others,)) if others.terms else ((), ())
    claim = {"step": "mix", "matrix": [[str(entry) for entry in row] for row in rows]}
    scores = (*queries, *more_queries), (*keys, *more_keys)
    if not scores[0]:
        scores = mean_scores(constants)
    return Mixture(scores, total, claim, has_null)
