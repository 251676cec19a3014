"""Scores of attention as queries and keys.

A score s_jk is a polynomial of degree two in lines of token j and lines of token k,

    s_jk = r_j + b_jk + sum_c q_jc k_kc.

Lines that all scores of token j share belong to j, lines that all scores for token k share
belong to k. What multiplies one line of token j, as a vector over k, is a key; if all
tokens have the same keys it is attention. r_j cancels in the softmax. The numbers b_jk
(biases by position, masks) become queries and keys that are constants.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING

from everyformer.construct.compile.lifting.builder import Builder
from everyformer.construct.compile.lifting.lines import (
    ONE,
    ZERO,
    Rational,
    Sum,
    Table,
    ratio,
)
from everyformer.construct.compile.program import Form

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

SILENT = Fraction(-(2**13))
"""The score of tokens that are not attended to: e^-8192 is 0 in float64."""

FAINT = 700
"""Scores of f so far below others are those of a mask that is written as a number."""

Monomial = tuple[int, ...]
Polynomial = dict[Monomial, Rational]
Channels = list[dict[int, Polynomial]]
"""For each channel, for each token, its query or its key."""
Pairs = Sequence[Sequence[int | None]]
"""The line of each score; None where there is no weight."""


@dataclass(frozen=True)
class Scores:
    """Queries and keys, as many of one as of the other.

    Attributes:
        queries: q.
        keys: k.
        everyone: Whether all pairs have a weight in f, some of them next to none.
        faint: The score that all other pairs have in f, or None.
    """

    queries: tuple[Form, ...]
    keys: tuple[Form, ...]
    everyone: bool = False
    faint: Fraction | None = None

    def attend(self, build: Builder, value: Form) -> Form:
        """The softmax average of a value; the mean if all scores are equal."""
        if not self.queries:
            return build.mean(value)
        return build.attend(
            self.queries, self.keys, value, everyone=self.everyone, faint=self.faint
        )


def bilinear(
    lift: "Lift",
    pairs: Pairs,
    *,
    exact: bool = False,
    less: Sequence[Sum] | None = None,
) -> Scores | None:
    """Queries and keys of these scores, or None where they are not of this form.

    Args:
        lift: Lifts what they read.
        pairs: The scores.
        exact: Whether what depends on token j alone is wanted too, with the key 1.
        less: For each token j a sum that its scores, opened as a whole, go without.
    """

    def score(line: int, common: Sum, depth: int, whole: bool) -> Polynomial:
        found = _polynomial(lift.table, line, depth, whole)
        for other, k in common.items():
            _add(found, (other,), -k)
        return {monomial: k for monomial, k in found.items() if k}

    nothing: Sequence[Sum] = [{}] * lift.n
    for whole, depth in product((False, True) if less is None else (True,), range(3)):
        polynomials = [
            [None if line is None else score(line, common, depth, whole) for line in row]
            for row, common in zip(pairs, less or nothing, strict=True)
        ]
        found = _Split(lift, polynomials, exact).scores()
        if found is not None:
            return found
    return None


def beside_faint(
    lift: "Lift", pairs: Pairs, less: Sequence[Sum], c: Rational
) -> Scores | None:
    """Queries and keys of scores beside others that are the number c in f.

    What depends on token j alone does not cancel then: the score c lacks it. `less` are
    sums that all scores of a token have, those that are c among them: the maximum.
    """
    scores = bilinear(lift, pairs, exact=True, less=less)
    return scores and replace(scores, everyone=False, faint=Fraction(c))


def _polynomial(table: Table, line: int, depth: int, whole: bool) -> Polynomial:
    """A score over lines.

    Multiplied out are squares of sums that nothing else reads, from depth 1 on all squares,
    from depth 2 on all products. If it is opened as a whole, so are sums that are read
    elsewhere too, as scores are whose maximum is subtracted.
    """
    terms, offset = table.opened([(line, ONE)], () if whole else None)
    found: Polynomial = {(): offset} if offset else {}
    for atom, coefficient in terms.items():
        factor, factors = ONE, {atom: ONE}
        if table.nodes[atom].op in {"mul", "pow"}:
            factor, factors = table.monomial(atom)
        lines = [k for k, p in factors.items() if p.denominator == 1 for _ in range(int(p))]
        plain = all(p.denominator == 1 and p > 0 for p in factors.values())
        if not plain or len(lines) != 2:
            factor, lines = ONE, [atom]
        elif depth == 2 or (
            lines[0] == lines[1] and (depth == 1 or table.uses[lines[0]] == 1)
        ):
            first, second = (_linear(table, k) for k in lines)
            for a, c in first.items():
                for b, e in second.items():
                    _add(found, tuple(sorted(a + b)), coefficient * factor * c * e)
            continue
        _add(found, tuple(sorted(lines)), coefficient * factor)
    return {key: c for key, c in found.items() if c}


def _linear(table: Table, line: int) -> Polynomial:
    terms, offset = table.open_shallow(line)
    found: Polynomial = {(k,): c for k, c in terms.items()}
    if offset:
        found[()] = offset
    return found


def _add(polynomial: Polynomial, key: Monomial, value: Rational) -> None:
    polynomial[key] = polynomial.get(key, ZERO) + value


class _Split:
    """Scores over lines of token j and of token k."""

    def __init__(
        self, lift: "Lift", scores: list[list[Polynomial | None]], exact: bool
    ) -> None:
        self._lift, self._scores, self._n = lift, scores, lift.n
        self._exact, self._rests = exact, dict[int, Polynomial]()
        self._pairs = [
            (j, k)
            for j in range(self._n)
            for k in range(self._n)
            if scores[j][k] is not None
        ]
        count = [sum(p is not None for p in row) for row in scores]
        self._beside = [(j, k) for j, k in self._pairs if j != k and count[j] > 1]
        self._biases: dict[tuple[int, int], Rational] = {}
        self._support = [Counter(place[axis] for place in self._beside) for axis in (0, 1)]

    def scores(self) -> Scores | None:
        """Queries and keys, or None."""
        rows = self._common(0)
        columns = self._common(1)
        tables: dict[tuple[int, int], dict[Monomial, Polynomial]] = {}
        for j, k in self._beside:
            split = self._split(j, k, rows[j], columns[k])
            if split is None:
                return None
            tables[j, k] = split
        channels = self._channels(tables)
        if channels is None:
            return None
        queries, keys = channels
        for k in range(self._n):
            own = self._scores[k][k] is not None and all(k not in key for key in keys)
            if own and not self._complete_by_twins(k, queries, keys):
                self._complete(k, queries, keys)
        if not self._agree(queries, keys):
            return None
        for query, key in zip(queries, keys, strict=True):
            self._extend(query, key)
        if self._exact and not self._agree(queries, keys):
            return None
        return self._made(queries, keys)

    def _common(self, axis: int) -> list[set[int]]:
        """The lines that all scores of a row, or a column, have."""
        found: list[set[int] | None] = [None] * self._n
        for place in self._beside:
            polynomial = self._scores[place[0]][place[1]] or {}
            lines = {line for key in polynomial for line in key}
            old = found[place[axis]]
            found[place[axis]] = lines if old is None else old & lines
        return [lines or set() for lines in found]

    def _split(
        self, j: int, k: int, row: set[int], column: set[int]
    ) -> dict[Monomial, Polynomial] | None:
        """For each product of lines of token j what it is multiplied with."""
        found: dict[Monomial, Polynomial] = {}
        for key, coefficient in (self._scores[j][k] or {}).items():
            mine: list[int] = []
            theirs: list[int] = []
            for line in key:
                is_mine, is_theirs = line in row, line in column
                if is_mine and is_theirs:
                    home = self._lift.match.home(line)
                    weaker = self._support[0][j] < self._support[1][k]
                    is_mine = home == j or (home != k and not weaker)
                if not is_mine and not is_theirs:
                    return None
                (mine if is_mine else theirs).append(line)
            found.setdefault(tuple(mine), {})[tuple(theirs)] = coefficient
        self._biases[j, k] = found.get((), {}).pop((), ZERO)
        return {key: value for key, value in found.items() if value}

    def _channels(
        self, tables: dict[tuple[int, int], dict[Monomial, Polynomial]]
    ) -> tuple[Channels, Channels] | None:
        """For each channel the queries by tokens, and the keys by tokens."""
        n = self._n
        queries: Channels = []
        keys: Channels = []
        lanes: dict[int, list[int]] = {}
        for j, k in self._beside:
            lanes.setdefault(j, []).append(k)
        order = sorted(lanes, key=lambda j: -len(lanes[j]))
        for j in order:
            vectors: dict[Monomial, dict[int, Polynomial]] = {}
            for k in lanes[j]:
                for mine, theirs in tables[j, k].items():
                    vectors.setdefault(mine, {})[k] = theirs
            mixed: dict[object, dict[Monomial, Rational]] = {}
            for mine, vector in sorted(vectors.items()):
                if mine and _is_constant(vector, lanes[j]):
                    continue
                mixed.setdefault(_frozen(vector), {})[mine] = ONE
            ours = [(dict(vectors[next(iter(q))]), q) for q in mixed.values()]
            free = set(range(len(queries)))
            for number, (vector, query) in enumerate(ours):
                channel = self._channel(keys, vector, free)
                if channel is None:
                    channel = self._alike(keys, vector, free)
                if channel is None and queries and n == 2 and len(ours) == len(queries):
                    channel = number if number in free else None
                if channel is None:
                    if j != order[0]:
                        return None
                    channel = len(queries)
                    queries.append({})
                    keys.append({})
                free.discard(channel)
                queries[channel][j] = dict(query)
                for k, value in vector.items():
                    keys[channel].setdefault(k, value)
        return queries, keys

    @staticmethod
    def _channel(
        keys: Channels, vector: dict[int, Polynomial], free: set[int]
    ) -> int | None:
        """The channel whose keys agree with a vector where both are known."""
        for channel in sorted(free):
            known = keys[channel]
            common = known.keys() & vector.keys()
            if common and all(known[k] == vector[k] for k in common):
                return channel
        return None

    def _alike(
        self, keys: Channels, vector: dict[int, Polynomial], free: set[int]
    ) -> int | None:
        """The channel whose keys, all of other tokens, do the same to their tokens."""

        def looks(key: Polynomial) -> object:
            colours = self._lift.table.colours
            return sorted((sorted(colours[line] for line in m), c) for m, c in key.items())

        for channel in sorted(free):
            known = keys[channel]
            if known and not known.keys() & vector.keys():
                seen = [looks(key) for key in known.values()]
                if all(looks(key) in seen for key in vector.values()):
                    return channel
        return None

    def _rest(self, j: int, k: int, queries: Channels, keys: Channels) -> Polynomial:
        """A score without queries times keys."""
        rest = dict(self._scores[j][k] or {})
        for query, key in zip(queries, keys, strict=True):
            for mine, a in query.get(j, {}).items():
                for theirs, b in key.get(k, {}).items():
                    _add(rest, tuple(sorted(mine + theirs)), -a * b)
        return {monomial: c for monomial, c in rest.items() if c}

    def _complete(self, k: int, queries: Channels, keys: Channels) -> None:
        """The keys of a token that it alone attends to: what its own queries multiply."""
        other = next((place for place in self._beside if place[0] == k), None)
        if other is None:
            return
        common = self._rest(*other, queries, keys)
        for monomial, c in self._rest(k, k, queries, keys).items():
            if not monomial or common.get(monomial) == c:
                continue
            for query, key in zip(queries, keys, strict=True):
                mine = next(iter(query.get(k, {})), None)
                theirs = None if mine is None else _without(monomial, mine)
                if theirs is not None and self._resembles(theirs, key):
                    _add(key.setdefault(k, {}), theirs, c)
                    break

    def _complete_by_twins(self, k: int, queries: Channels, keys: Channels) -> bool:
        """The keys of a token that it alone attends to, like those of others, if they fit.

        Its own score may show nothing of them: -(x_k - x_k)^2 is 0.
        """
        other = next((place for place in self._beside if place[0] == k), None)
        if other is None:
            return False
        twins: list[Polynomial] = []
        for key in keys:
            found: Polynomial = {}
            near = key[min(key, key=lambda j: abs(j - k))] if key else {}
            for monomial, c in near.items():
                lines = [self._lift.table.twin(line, k) for line in monomial]
                if None in lines:
                    return False
                _add(found, tuple(sorted(line for line in lines if line is not None)), c)
            twins.append(found)
        for key, twin in zip(keys, twins, strict=True):
            key[k] = twin
        common, own = self._rest(*other, queries, keys), self._rest(k, k, queries, keys)
        common.pop((), None)
        own.pop((), None)
        if common == own:
            return True
        for key in keys:
            del key[k]
        return False

    def _extend(self, query: dict[int, Polynomial], key: dict[int, Polynomial]) -> None:
        """Queries of tokens with one weight, which is 1 whatever they are: like others."""
        given = sorted(query)
        for j in range(self._n):
            if j in query or not given:
                continue
            near = query[min(given, key=lambda k: abs(k - j))]
            twins = self._own(j, key, len(next(iter(near))))
            for monomial, c in near.items() if not twins else ():
                lines = [self._lift.table.twin(line, j) for line in monomial]
                twins[tuple(sorted(line for line in lines if line is not None))] = c
            if [len(m) for m in twins] == [len(m) for m in near]:
                query[j] = twins

    def _own(self, j: int, key: dict[int, Polynomial], size: int) -> Polynomial:
        """What multiplies the key of a token in its score for itself."""
        for monomial in self._scores[j][j] or {}:
            for theirs in key.get(j, {}):
                mine = _without(monomial, theirs)
                if mine is not None and len(mine) == size:
                    return {mine: ONE}
        return {}

    def _resembles(self, theirs: Monomial, key: dict[int, Polynomial]) -> bool:
        """Whether other tokens have keys of as many lines."""
        return any(len(m) == len(theirs) for value in key.values() for m in value)

    def _agree(self, queries: Channels, keys: Channels) -> bool:
        """Whether score minus queries times keys is a function of token j and a number."""
        rests = self._rests = dict[int, Polynomial]()
        own = [(j, j) for j in range(self._n) if self._scores[j][j] is not None]
        for j, k in self._pairs if self._exact else [*self._beside, *own]:
            rest = self._rest(j, k, queries, keys)
            self._biases[j, k] = rest.pop((), ZERO)
            if rests.setdefault(j, rest) != rest:
                return False
        return True

    def _made(self, queries: Channels, keys: Channels) -> Scores:
        """The forms: those of lines, then those of numbers."""
        lift, build = self._lift, self._lift.build
        made: list[tuple[Form, Form]] = []
        plain = Form.constant(0)
        for query, key in zip(queries, keys, strict=True):
            k = lift.sums([self._lines(key.get(k, {})) for k in range(self._n)])
            if any(set(q) == {()} for q in query.values()):
                plain += k
                continue
            q = lift.sums([self._lines(query.get(j, {})) for j in range(self._n)])
            made.append((q, k))
        lift.build.origin = "positions"
        biases = self._full_biases()
        shifts = [ZERO] * self._n
        if self._exact:
            heard = [
                min((k for i, k in self._pairs if i == j), default=0)
                for j in range(self._n)
            ]
            shifts = [numbers[k] for numbers, k in zip(biases, heard, strict=True)]
        row, factors = _factored(biases, shifts if self._exact else None)
        if any(row):
            plain += build.constants(row)
        if plain.terms or (self._exact and plain.offset):
            made.append((Form.constant(1), plain))
        if self._exact:
            own = lift.sums([self._lines(self._rests.get(j, {})) for j in range(self._n)])
            own = build.form(own + build.constants(shifts))
            made += [(own, Form.constant(1))] if own.terms or own.offset else []
        made += [(build.constants(q), build.constants(k)) for q, k in factors]
        masked = any(max(numbers) - min(numbers) > FAINT for numbers in biases)
        return Scores(
            tuple(build.form(q) for q, _ in made),
            tuple(build.form(k) for _, k in made),
            masked and len(self._pairs) == self._n**2,
        )

    def _lines(self, polynomial: Polynomial) -> list[tuple[int, Rational]]:
        """A polynomial as a sum of lines."""
        table = self._lift.table
        terms: Sum = {}
        for monomial, c in polynomial.items():
            if not monomial:
                line = table.constant(ONE)
            elif len(monomial) == 1:
                (line,) = monomial
            elif monomial[0] == monomial[1]:
                line = table.make("pow", monomial[0], 2)
            else:
                line = table.make("mul", *monomial)
            terms[line] = terms.get(line, ZERO) + c
        return list(terms.items())

    def _full_biases(self) -> list[list[Rational]]:
        n, present = self._n, set(self._pairs)
        found: list[list[Rational]] = []
        for j in range(n):
            row = [self._biases.get((j, k), ZERO) for k in range(n)]
            own = [row[k] for k in range(n) if (j, k) in present]
            silent = min(own) + SILENT
            found.append([row[k] if (j, k) in present else silent for k in range(n)])
        return found


def _without(whole: Monomial, part: Monomial) -> Monomial | None:
    """What is left of a product without some of its factors, or None."""
    rest = list(whole)
    for line in part:
        if line not in rest:
            return None
        rest.remove(line)
    return tuple(rest)


def _is_constant(vector: dict[int, Polynomial], columns: list[int]) -> bool:
    """Whether it is the same number for all tokens k."""
    values = {tuple(vector.get(k, {}).items()) for k in columns}
    return len(values) == 1 and all(key == () for key, _ in next(iter(values)))


def _frozen(vector: dict[int, Polynomial]) -> object:
    return frozenset((k, frozenset(value.items())) for k, value in vector.items())


Vector = list[Rational]


def _factored(
    matrix: list[Vector], shifts: Vector | None = None
) -> tuple[Vector, list[tuple[Vector, Vector]]]:
    """b_jk = (a number of j) + w_k + sum_r u_jr v_kr: w, and the pairs (u_r, v_r).

    The numbers of tokens are `shifts`, or any.
    """
    n = len(matrix)
    shifts = [row[0] for row in matrix] if shifts is None else shifts
    first = [[c - s for c in row] for row, s in zip(matrix, shifts, strict=True)]
    base = min(first, key=lambda row: sum(abs(c) for c in row))
    rest = [[c - b for c, b in zip(row, base, strict=True)] for row in first]
    pairs: list[tuple[Vector, Vector]] = []
    for _ in range(n):
        place = next(((j, k) for j in range(n) for k in range(n) if rest[j][k]), None)
        if place is None:
            return base, pairs
        j, k = place
        u = [row[k] for row in rest]
        v = [ratio(c, rest[j][k]) for c in rest[j]]
        rest = [
            [c - a * b for c, b in zip(row, v, strict=True)]
            for row, a in zip(rest, u, strict=True)
        ]
        pairs.append((u, v))
    return base, pairs
