"""Sums over tokens with constant weights, as the cheapest steps that say them.

    y_j = sum_k M_jk v_k

M = b 11^T + diag(c) + a gather + the rest: the mean, a factor for each token, one token for
each token, and a mixture only if something else is left.
"""

from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from everyformer.construct.compile.lifting.builder import Builder
from everyformer.construct.compile.lifting.lines import Rational
from everyformer.construct.compile.program import Form

ZERO = Fraction(0)
Weights = Mapping[tuple[int, int], Rational]
"""M_jk, where it is not 0."""
Exact = Mapping[tuple[int, int], Fraction]


def mixture(build: Builder, value: Form, weights: Weights) -> Form:
    """The form with the numbers sum_k M_jk v_k."""
    n = build.n
    M: dict[tuple[int, int], Fraction] = {p: Fraction(c) for p, c in weights.items() if c}
    if not M:
        return build.form(Form.constant(0))
    if n == 1 or not value.terms or build.is_uniform(value):
        rows = [ZERO] * n
        for (j, _), c in M.items():
            rows[j] += c
        return build.scale(value, rows)
    if all(j == k for j, k in M):
        return build.scale(value, [M.get((j, j), ZERO) for j in range(n)])
    base = _common(n, M)
    if base:
        rest = {(j, k): M.get((j, k), ZERO) - base for j in range(n) for k in range(n)}
        rest = {place: c for place, c in rest.items() if c}
        plain = not _off(rest) or not _is_simple(n, M)  # else a gather says it alone
        if plain and _is_simple(n, rest):
            return build.form(build.mean(value) * (n * base) + _simple(build, value, rest))
    if _is_simple(n, M):
        return _simple(build, value, M)
    diagonal = {M.get((j, j), ZERO) for j in range(n)}
    others = {place: c for place, c in M.items() if place[0] != place[1]}
    if len(diagonal) == 1:
        (c,) = diagonal
        if (
            c
            and len({x > 0 for x in others.values()}) == 1
            and (c > 0) != (next(iter(others.values())) > 0)
        ):
            return build.form(value * c + build.mix(value, _square(n, others)))
    return build.mix(value, _square(n, M))


def _common(n: int, M: Exact) -> Fraction:
    """The weight that most places beside the diagonal have."""
    counts = Counter(c for (j, k), c in M.items() if j != k)
    if not counts:
        return ZERO
    value, count = counts.most_common(1)[0]
    return value if count > n * (n - 1) - count - n else ZERO


def _off(M: Exact) -> dict[int, list[int]]:
    """For each token, the others that it reads."""
    rows: dict[int, list[int]] = {}
    for j, k in M:
        if j != k:
            rows.setdefault(j, []).append(k)
    return rows


def _is_simple(n: int, M: Exact) -> bool:
    """Whether it is a diagonal and at most one other token for each."""
    return all(len(row) == 1 for row in _off(M).values())


def _simple(build: Builder, value: Form, M: Exact) -> Form:
    n = build.n
    off = _off(M)
    diagonal = [M.get((j, j), ZERO) for j in range(n)]
    if not off:
        return build.scale(value, diagonal)
    coefficients = [M[j, off[j][0]] if j in off else None for j in range(n)]
    given = [c for c in coefficients if c is not None]
    usual = Counter(given).most_common(1)[0][0]
    alone = [j for j in range(n) if j not in off and diagonal[j] == usual]
    if not any(diagonal[j] for j in off) or len(set(diagonal)) > 1:
        # a token that reads itself alone takes part in the gather
        for j in alone:
            coefficients[j], diagonal[j] = usual, ZERO
    tau = [off[j][0] if j in off else j for j in range(n)]
    missing = [j for j in range(n) if coefficients[j] is None]
    if missing and len(set(given)) == 1 and len({tau[j] for j in off}) == 1:
        for j in missing:
            tau[j] = tau[next(iter(off))]
    gathered = build.gather(value, tau)
    moved = build.scale(gathered, [ZERO if c is None else c for c in coefficients])
    return build.form(moved + build.scale(value, diagonal))


def _square(n: int, M: Exact) -> list[list[Fraction]]:
    return [[M.get((j, k), ZERO) for k in range(n)] for j in range(n)]
