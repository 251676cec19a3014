"""Attention: sums of values with softmax weights over tokens.

    y_j = sum_k E_jk v_k / D_j,   D_j = sum_k E_jk,   E_jk = exp(s_jk)

as (sum_k E_jk v_k) / D_j, or with weights E_jk / D_j. What a lane's terms are multiplied
with is the value of token k; parts of it that belong to token j come out of the sum. How
the scores s_jk come from queries and keys: see `scores.py`. What depends on j alone
cancels, the subtracted maximum among it. A mask may have put one number in the place of
scores, `np.where(mask, s, -1e9)`: all these tokens share one exponential.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everyformer.construct.compile.lifting.lines import ONE, ZERO, Rational, Sum, ratio
from everyformer.construct.compile.lifting.scores import (
    FAINT,
    Scores,
    beside_faint,
    bilinear,
)
from everyformer.construct.compile.program import Form

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

Values = dict[int, Sum]
"""For each exponential of a sum the lines it is multiplied with; -1 stands for 1."""

NUMBER = -1


@dataclass(frozen=True)
class Heads:
    """For each token one softmax sum.

    Attributes:
        totals: The denominators D_j.
        values: What each exponential is multiplied with.
        lines: The atoms that it stands for. A token without any attends to itself alone;
            its value is taken from its sum.
    """

    totals: tuple[int, ...]
    values: tuple[Values, ...]
    lines: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Masked:
    """Exponentials of f that stand for all tokens that are masked.

    Attributes:
        faint: The exponentials, one for each row that has masked tokens.
        less: For each row the sum that all its exponents have.
        c: What is left of the exponents of masked tokens: a number far below.
    """

    faint: set[int]
    less: list[Sum]
    c: Rational


class Attention:
    """Finds softmax sums in the lanes of a family."""

    def __init__(self, lift: "Lift") -> None:
        """Begin with no scores known."""
        self._lift = lift
        self._scores: dict[tuple[tuple[int | None, ...], ...], Scores | None] = {}
        self._exponentials: dict[int, Sum | None] = {}

    def extract(self, lanes: list[Sum]) -> tuple[Form, list[Sum]]:
        """Take softmax sums out of lanes: their form, and what is left."""
        total = Form.constant(0)
        if self._lift.n == 1:
            return total, lanes
        found = [self._denominators(lane) for lane in lanes]
        count = {len(row) for row in found} - {0}
        if len(count) != 1:
            return total, lanes
        given = [j for j, row in enumerate(found) if row]
        rows = [
            sorted(found[min(given, key=lambda k, j=j: abs(k - j))])
            for j in range(self._lift.n)
        ]
        for totals, _ in self._lift.match.align(rows):
            values = tuple(
                row[D][0] if row else {} for D, row in zip(totals, found, strict=True)
            )
            lines = tuple(
                tuple(row[D][1]) if row else ()
                for D, row in zip(totals, found, strict=True)
            )
            made = self._lifted(Heads(totals, values, lines))
            if made is not None:
                form, left = made
                total += form
                for j, (lane, done) in enumerate(zip(lanes, lines, strict=True)):
                    for line in done:
                        del lane[line]
                    if not found[j]:
                        lanes[j] = _minus(lane, left[j])
        return total, lanes

    def _denominators(self, lane: Sum) -> dict[int, tuple[Values, list[int]]]:
        """The softmax sums of a lane, by their denominators."""
        found: dict[int, tuple[Values, list[int]]] = {}
        table = self._lift.table
        for line, coefficient in lane.items():
            if table.nodes[line].op not in {"mul", "div"}:
                continue
            factor, factors = table.monomial(line)
            for D, power in factors.items():
                weights = self._sum_of_exponentials(D) if power == -1 else None
                if weights is None:
                    continue
                values = found[D][0] if D in found else {}
                rest = {k: p for k, p in factors.items() if k != D}
                if self._split(values, weights, rest, coefficient * factor):
                    found.setdefault(D, (values, []))[1].append(line)
                break
        return found

    def _sum_of_exponentials(self, line: int) -> Sum | None:
        if line not in self._exponentials:
            self._exponentials[line] = self._lift.table.exponentials(line)
        return self._exponentials[line]

    def _split(
        self, values: Values, weights: Sum, factors: dict[int, Rational], size: Rational
    ) -> bool:
        """Add what the exponentials of D are multiplied with; False if it is not that."""
        table = self._lift.table
        own = [k for k, power in factors.items() if power == 1 and k in weights]
        if len(own) == 1:
            rest = {k: p for k, p in factors.items() if k != own[0]}
            self._add(values, own[0], self._line(rest), size)
            return True
        if len(factors) != 1 or next(iter(factors.values())) != 1:
            return False
        (numerator,) = factors
        if not table.is_linear(numerator):
            return False
        terms, offset = table.opened([(numerator, ONE)], ())
        parts: list[tuple[int, int, Rational]] = []
        for line, coefficient in terms.items():
            factor, inner = table.monomial(line)
            if not factor:  # a mask of 0 and 1: the others say what is heard
                continue
            own = [k for k, power in inner.items() if power == 1 and k in weights]
            if len(own) != 1:
                return False
            rest = {k: p for k, p in inner.items() if k != own[0]}
            parts.append((own[0], self._line(rest), size * factor * coefficient))
        if offset:
            return False
        for E, line, coefficient in parts:
            self._add(values, E, line, coefficient)
        return True

    def _line(self, factors: dict[int, Rational]) -> int:
        """A line for a product of factors."""
        return self._lift.table.product_of(factors) if factors else NUMBER

    @staticmethod
    def _add(values: Values, E: int, line: int, coefficient: Rational) -> None:
        row = values.setdefault(E, {})
        row[line] = row.get(line, ZERO) + coefficient

    def _lifted(self, heads: Heads) -> tuple[Form, list[Sum]] | None:
        """The form of softmax sums, one for each token, and the values of tokens.

        None if they are not attention.
        """
        lift, n = self._lift, self._lift.n
        sums = [self._sum_of_exponentials(D) or {} for D in heads.totals]
        masked = self._masked(sums)
        if masked is not None:
            sums = [{E: c for E, c in row.items() if E not in masked.faint} for row in sums]
            rows = tuple(
                {E: v for E, v in row.items() if E not in masked.faint}
                for row in heads.values
            )
            heads = Heads(heads.totals, rows, heads.lines)
        if any(len(set(row.values())) != 1 or len(row) > n for row in sums):
            return None
        sizes = [next(iter(row.values())) for row in sums]
        alone = [j for j in range(n) if not heads.lines[j]]
        for j in alone:
            sums[j], sizes[j] = {}, ONE
        labels = self._labels(heads, [sorted(row) for row in sums])
        if labels is None:
            return None
        found = self._values(heads, labels)
        if found is None:
            opened = tuple(map(self._opened, heads.values))
            found = self._values(Heads(heads.totals, opened, heads.lines), labels)
        if found is None:
            return None
        own, values = found
        if all(len(row) == 1 for row in values):
            lift.match.settle(tuple(row[0][0] for row in values))
        value = lift.sums(values)
        pairs: list[list[int | None]] = [[None] * n for _ in range(n)]
        for j, row in enumerate(labels):
            for E, k in row.items():
                pairs[j][k] = lift.table.nodes[E].args[0]
        for j in alone:
            pairs[j][j] = lift.table.constant(ZERO)
        key = tuple(map(tuple, pairs))
        if key not in self._scores:
            lines = [line for row in key for line in row if line is not None]
            with lift.names.within(lines):
                if masked is None:
                    self._scores[key] = bilinear(lift, pairs)
                else:
                    self._scores[key] = beside_faint(lift, pairs, masked.less, masked.c)
        scores = self._scores[key]
        if scores is None:
            return None
        lift.says(tuple(row[0] for row in heads.lines if row))
        made = scores.attend(lift.build, value)
        made = lift.build.scale(made, [ratio(1, size) for size in sizes])
        mine = lift.build.scale(lift.sums(own), [ratio(1, size) for size in sizes])
        left = [lift.table.opened(terms, ()) for terms in values]
        if any(offset for _, offset in left) and alone:
            return None
        return lift.build.form(made + mine), [terms for terms, _ in left]

    def _masked(self, sums: Sequence[Sum]) -> "_Masked | None":
        """The exponentials of masked tokens, if all rows that have some agree.

        Rows without any are complete; the maximum that they subtract cancels.
        """
        table, n = self._lift.table, self._lift.n
        faint: set[int] = set()
        numbers: set[Rational] = set()
        less: list[Sum] = []
        for row in sums:
            parts = [table.opened([(table.nodes[E].args[0], ONE)], ()) for E in row]
            loudest = max((offset for _, offset in parts), default=ZERO)
            quiet = [offset < loudest - FAINT for _, offset in parts]
            low = [k for k, is_quiet in enumerate(quiet) if is_quiet]
            if len(low) > 1 or (not low and len(row) != n):
                return None
            if low:
                common, number = parts[low[0]]
                numbers.add(number)
                faint.add(list(row)[low[0]])
            else:
                terms, _ = parts[0]
                common = {k: c for k, c in terms.items() if table.nodes[k].op == "max"}
            if any(terms.get(k) != c for terms, _ in parts for k, c in common.items()):
                return None
            less.append(common)
        return _Masked(faint, less, numbers.pop()) if len(numbers) == 1 else None

    def _labels(
        self, heads: Heads, rows: Sequence[list[int]]
    ) -> list[dict[int, int]] | None:
        """For each exponential of each token the token k whose weight it is.

        Values tell it if each of them is read through one exponential of every token; else
        the order of the lines does.
        """
        n = self._lift.n
        longest = max(range(n), key=lambda j: len(rows[j]))
        names: dict[int, int] = {}
        for j in (longest, *(j for j in range(n) if j != longest)):
            homes = self._at_home(heads.values[j], rows[j])
            if homes is None and (j != longest or names):
                continue  # the order of its weights tells nothing
            for k, E in enumerate(homes or rows[j]):
                for line in heads.values[j].get(E, {}) if E >= 0 else ():
                    known = names.setdefault(line, k)
                    if known != k or line == NUMBER:
                        names[line] = -2
        found: list[dict[int, int]] = []
        for j, row in enumerate(rows):
            labels: dict[int, int] = {}
            for E in row:
                marks = {names.get(line, -2) for line in heads.values[j].get(E, {})} - {-2}
                if len(marks) == 1:
                    labels[E] = marks.pop()
            if len(set(labels.values())) != len(row) or len(labels) != len(row):
                labels = {E: k for k, E in enumerate(row)}
            found.append(labels)
        return found

    def _opened(self, values: Values) -> Values:
        """The same values, with their sums opened."""
        found: Values = {}
        for E, terms in values.items():
            lines = [(line, c) for line, c in terms.items() if line != NUMBER]
            found[E], offset = self._lift.table.opened(lines)
            offset += terms.get(NUMBER, ZERO)
            if offset:
                found[E][NUMBER] = offset
        return found

    def _at_home(self, values: Values, row: list[int]) -> list[int] | None:
        """The exponentials of a token by the homes of their values; None if unknown."""
        n = self._lift.n
        homes: dict[int, int] = {}
        for E in row:
            lines = [line for line in values.get(E, {}) if line != NUMBER]
            known = {h for line in lines if (h := self._lift.match.home(line)) is not None}
            if len(known) == 1:
                homes[known.pop()] = E
        if len(homes) != len(row):
            return None
        return [homes.get(k, -1) for k in range(n)]

    def _values(
        self, heads: Heads, labels: list[dict[int, int]]
    ) -> tuple[list[list[tuple[int, Rational]]], list[list[tuple[int, Rational]]]] | None:
        """Lines that belong to token j, and the values of all tokens k."""
        n = self._lift.n
        own: list[list[tuple[int, Rational]]] = []
        values: dict[int, Sum] = {}
        for j, row in enumerate(labels):
            sums = [heads.values[j].get(E, {}) for E in row]
            common = self._common(j, list(row.values()), sums)
            own.append([(k, c) for k, c in common.items() if k != NUMBER])
            constant = common.get(NUMBER)
            if constant:
                own[-1].append((self._lift.table.constant(constant), ONE))
            for (_, k), terms in zip(row.items(), sums, strict=True):
                left = _minus(terms, common)
                if values.setdefault(k, left) != left:
                    return None
        one = self._lift.table.constant(ONE)
        lists = [
            [(one if line == NUMBER else line, c) for line, c in values.get(k, {}).items()]
            for k in range(n)
        ]
        return own, lists

    def _common(self, j: int, tokens: list[int], sums: list[Sum]) -> Sum:
        """What all values that token j reads have in common; its own may lack it."""
        found: Sum = {}
        uses = Counter(line for terms in sums for line in terms)
        least = 1 if len(sums) == 2 else len(sums) - 1
        for line in (line for line, count in uses.items() if count >= least):
            counts = Counter(terms.get(line, ZERO) for terms in sums)
            value, count = counts.most_common(1)[0]
            if len(sums) == 2 and j in tokens and self._lift.match.home(line) == j:
                value, count = sums[1 - tokens.index(j)].get(line, ZERO), 2
            if value and count >= max(2, len(sums) - 1):
                found[line] = value
        return found


def _minus(first: Sum, second: Sum) -> Sum:
    found = dict(first)
    for line, c in second.items():
        found[line] = found.get(line, ZERO) - c
    return {line: c for line, c in found.items() if c}
