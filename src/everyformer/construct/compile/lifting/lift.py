"""From the lines of f to steps by tokens.

Begin with the outputs: coordinate i of all tokens is a family of n lines. The sums of its
lanes are opened into atoms, the atoms are matched into families, and these are lifted in
turn, each once. Whatever the matching, a family has one line for each token, so the program
computes f; the verifier believes nothing of it.
"""

import sys
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from everyformer.certify.compile.algebra.sorting import odd_even
from everyformer.construct.compile.lifting import exponential_sums
from everyformer.construct.compile.lifting.attention import Attention
from everyformer.construct.compile.lifting.branches import branch, has_choice, merged
from everyformer.construct.compile.lifting.builder import Builder
from everyformer.construct.compile.lifting.extremes import SortingNetwork, Sorts, extreme
from everyformer.construct.compile.lifting.families import (
    Families,
    Family,
    places,
)
from everyformer.construct.compile.lifting.lines import ONE, ZERO, Rational, Sum, Table
from everyformer.construct.compile.lifting.mixtures import mixture
from everyformer.construct.compile.lifting.monomials import monomial
from everyformer.construct.compile.lifting.names import Names
from everyformer.construct.compile.program import Form, FunctionName, Program
from everyformer.construct.compile.ranges import Range
from everyformer.errors import ExpressionError, TargetError
from everyformer.numerics.expression import Expression
from everyformer.targets.box import Box
from everyformer.targets.target import Target

MOST_STEPS = 20_000
"""Steps before a program is refused."""

DEPTH = 200_000
"""Families inside families."""

UNARY: dict[str, FunctionName] = {
    "exp": "exp",
    "log": "log",
    "sin": "sin",
    "cos": "cos",
    "tanh": "tanh",
}


def program_of(target: Target) -> Expression:
    """The recorded program of f.

    Raises:
        ExpressionError: If f was not recorded, with the operation that was in the way.
    """
    if target.expression is None:
        msg = (
            f"method='compile' needs {target.name} as a program, and it has none: "
            f"{target.untraceable} Write it with operations that can be traced."
        )
        raise ExpressionError(msg)
    return target.expression


def lift(target: Target, network: SortingNetwork = odd_even) -> Program:
    """Write a target as steps by tokens.

    Args:
        target: The function.
        network: How n numbers are sorted, where f's own sort is recognised.

    Raises:
        ExpressionError: If f is not known as a program.
        TargetError: If f is not continuous, may be undefined, or is too large.
    """
    expression = program_of(target)
    table = Table(expression)
    build = Builder(target.seq_len, target.domain)
    with _deep():
        lifted = Lift(table, build, target.name, target.domain)
        lifted.sorting = Sorts(expression, network)
        columns = zip(*expression.outputs, strict=True)
        outputs = tuple(lifted.family(column) for column in columns)
    sorts = tuple(lifted.sorting.found)
    return Program(target.seq_len, target.domain, outputs, sorts)


class Lift:
    """Lifts families, each once.

    Attributes:
        table: The lines of f.
        build: Makes the steps.
        name: f's, for messages.
        box: The domain.
        match: Matches lines of tokens.
        names: What people call lines.
        sorting: How n numbers are sorted.
    """

    def __init__(self, table: Table, build: Builder, name: str, box: Box) -> None:
        """Begin with the lines of f."""
        self.table, self.build, self.name, self.box = table, build, name, box
        self.match = Families(table, build.n)
        self.attention = Attention(self)
        self.sorting = Sorts(None)
        self._known: dict[Family, Form] = {}
        self._atoms: dict[Family, Form] = {}
        self.names = Names(table)

    @property
    def n(self) -> int:
        """The number of tokens."""
        return self.build.n

    def family(self, lines: Sequence[int]) -> Form:
        """The form of a line for each token."""
        key = tuple(lines)
        known = self._known.get(key)
        if known is None:
            self.match.settle(key)
            self._check_size(key)
            if any(self.table.is_linear(line) for line in set(key)):
                known = self.sums([[(line, ONE)] for line in key])
            else:
                known = self._of_one_kind(key)
            self._known[key] = known
        return known

    def _of_one_kind(self, key: Family) -> Form:
        """Lines that are not sums: one family of atoms if they do the same."""
        kinds = {_kind(self.table, line) for line in key}
        single = len(kinds) == 1 and not kinds & {"x", "const"}
        if "extreme" in kinds or (single and not min(kinds).startswith("product")):
            return self.atoms(key)
        return self.sums([[(line, ONE)] for line in key])

    def sums(self, lanes: Sequence[Sequence[tuple[int, Rational]]]) -> Form:
        """The form of a sum of lines for each token."""
        try:
            opened = [self._opened(lane) for lane in lanes]
        except OverflowError as error:
            self.refuse_size(str(error))
        offsets = [offset for _, offset in opened]
        whole = [lane[0][0] for lane in lanes if lane]
        terms = self.forms([terms for terms, _ in opened], whole)
        return self.build.form(self.build.constants(offsets) + terms)

    def _opened(self, lane: Sequence[tuple[int, Rational]]) -> tuple[Sum, Rational]:
        """A sum over atoms; products that are a number times one factor are opened."""
        while True:
            terms, offset = self.table.opened(lane)
            plain = {k: m for k in terms if (m := self.table.as_multiple(k)) is not None}
            if not plain:
                return terms, offset
            one = self.table.constant(ONE)
            rest = [(k, c) for k, c in terms.items() if k not in plain]
            lane = [*rest, (one, offset)]
            lane += [(line, terms[k] * c) for k, (line, c) in plain.items()]

    def forms(self, lanes: list[Sum], whole: list[int]) -> Form:
        """The form of a sum of atoms for each token; `whole` are lines that say it."""
        users = Counter(line for lane in lanes for line in lane)
        closed = [line for line in users if self.table.is_linear(line)]
        if closed and not self._is_even(lanes, closed, users):
            return self._reopened(lanes, set(closed), whole)
        total, lanes = self.attention.extract([dict(lane) for lane in lanes])
        summed, lanes = exponential_sums.extract(self, lanes)
        total += summed
        lanes = [merged(self, lane) for lane in lanes]
        users = Counter(line for lane in lanes for line in lane)
        entries = [k for k in users if self.table.nodes[k].op == "x"]
        total += self._entries(lanes, entries, whole)
        kinds: dict[str, list[int]] = {}
        for line in users:
            if self.table.nodes[line].op != "x":
                kinds.setdefault(_kind(self.table, line), []).append(line)
        for _, lines in sorted(kinds.items()):
            local = [line for line in lines if users[line] == 1]
            shared = [line for line in lines if users[line] > 1]
            if not self._are_alike(lanes, local) and all(
                self.match.home(line) is not None for line in lines
            ):
                local, shared = [], lines
            if local:
                total += self._local(lanes, set(local), whole)
            for family in self.match.gathered(shared):
                total += self._shared(lanes, family, set(shared), whole)
        return self.build.form(total)

    def _entries(self, lanes: Sequence[Sum], entries: list[int], whole: list[int]) -> Form:
        """Sums of entries of x, channel by channel."""
        total = Form.constant(0)
        channels = {line: self.table.nodes[line].args for line in entries}
        weights: dict[int, dict[tuple[int, int], Rational]] = {}
        for j, lane in enumerate(lanes):
            for line, c in lane.items():
                if line in channels:
                    k, i = channels[line]
                    weights.setdefault(i, {})[j, k] = c
        for i, places_of in sorted(weights.items()):
            own = {line for line, place in channels.items() if place[1] == i}
            self.build.origin = self.names.of_mixture(whole, own)
            total += mixture(self.build, self.build.input(i), places_of)
        return total

    def _are_alike(self, lanes: Sequence[Sum], local: list[int]) -> bool:
        """Whether all tokens have as many of these atoms."""
        mine = set(local)
        return len({sum(line in mine for line in lane) for lane in lanes}) == 1

    def _is_even(
        self, lanes: Sequence[Sum], closed: list[int], users: Mapping[int, int]
    ) -> bool:
        """Whether closed sums are numbers of tokens: each has its own, or all share."""
        if not self._are_alike(lanes, [line for line in closed if users[line] == 1]):
            return False
        families = self.match.gathered([line for line in closed if users[line] > 1])
        return all(
            len(set(family)) == self.n or all(family[0] in lane for lane in lanes)
            for family in families
        )

    def _reopened(self, lanes: Sequence[Sum], closed: set[int], whole: list[int]) -> Form:
        """The same sums, with closed ones opened."""
        stop = {k for lane in lanes for k in lane} - closed
        opened = [self.table.opened(list(lane.items()), stop) for lane in lanes]
        offsets = self.build.constants([offset for _, offset in opened])
        return self.build.form(offsets + self.forms([terms for terms, _ in opened], whole))

    def _local(self, lanes: Sequence[Sum], lines: set[int], whole: list[int]) -> Form:
        """Atoms that one token alone uses."""
        total = Form.constant(0)
        rows = [[line for line in lane if line in lines] for lane in lanes]
        for family, own in self.match.align(rows, lambda line, j: lanes[j].get(line)):
            value = self.atoms(family)
            factors = [lanes[j][line] if own[j] else ZERO for j, line in enumerate(family)]
            self.build.origin = self.names.of(whole)
            total += self.build.scale(value, factors)
        return total

    def _shared(
        self, lanes: Sequence[Sum], family: Family, lines: set[int], whole: list[int]
    ) -> Form:
        """Atoms that several tokens use, each from its home."""
        value = self.atoms(family)
        self.build.origin = self.names.of_mixture(whole, set(family))
        homes = {line: j for line, j in places(family).items() if line in lines}
        lines -= set(homes)
        if len(set(family)) == 1:
            return self.build.scale(value, [lane.get(family[0], ZERO) for lane in lanes])
        weights = {
            (j, k): lane[line]
            for j, lane in enumerate(lanes)
            for line, k in homes.items()
            if line in lane
        }
        return mixture(self.build, value, weights)

    def atoms(self, family: Family) -> Form:
        """The form of lines that are not sums and do the same."""
        known = self._atoms.get(family)
        if known is None:
            self.match.settle(family)
            known = self._atoms[family] = self.build.form(self._atom(family))
        return known

    def _atom(self, family: Family) -> Form:
        nodes = [self.table.nodes[line] for line in family]
        kinds = {_kind(self.table, line) for line in set(family)}
        kind, op = "extreme" if "extreme" in kinds else min(kinds), nodes[0].op
        if kind == "sum":
            return self.family(family)
        if kind.startswith("product"):
            return monomial(self, family)
        if kind == "extreme":
            return extreme(self, family)
        if kind == "where":
            return branch(self, family)
        argument = self.family([node.args[0] for node in nodes])
        self.says(family)
        if op == "abs":
            return self.build.absolute(argument)
        if op == "xlogx":
            self.check_above(argument, family, "takes the logarithm of")
            logarithm = self.build.unary("log", argument)
            return self.build.product(argument, logarithm)
        if op == "log":
            self.check_above(argument, family, "takes the logarithm of")
        return self.build.unary(UNARY[op], argument)

    def says(self, family: Family) -> None:
        """Name the lines that the next steps compute."""
        self.build.origin = self.names.of(family)

    def check_above(
        self, form: Form, family: Family, what: str, *, zero: bool = False
    ) -> None:
        """Refuse a number that may leave the domain of a function.

        Raises:
            TargetError: If the form may be <= 0, or < 0 where zero is allowed.
        """
        found = self.build.range(form)
        if found.low > 0 or (zero and found.low >= 0):
            return
        self.refuse_domain(family, what, "0 or less" if not zero else "less than 0", found)

    def refuse_domain(self, family: Family, what: str, why: str, found: Range) -> NoReturn:
        """Refuse a number that may leave the domain of a function."""
        msg = (
            f"{self.name} {what} line {family[0]}, which may be {why} on the domain "
            f"([{float(found.low):g}, {float(found.high):g}]). Add a positive number, or "
            "narrow the domain."
        )
        raise TargetError(msg)

    def refuse_size(self, why: str) -> NoReturn:
        """Refuse a program that does not fit into registers by tokens."""
        n, count = self.n, self.build.count
        msg = (
            f"{self.name} does not fit into registers by tokens ({why}); computed once for "
            f"all tokens it needs {count:,} registers or more and as many steps on {n} "
            "tokens. Take fewer tokens, or write it so that all tokens do the same."
        )
        raise TargetError(msg)

    def _check_size(self, key: Family) -> None:
        if self.build.count > MOST_STEPS:
            op = self.table.nodes[key[0]].op
            self.refuse_size(f"more than {MOST_STEPS:,} steps, at line {key[0]}, {op}")


def _kind(table: Table, line: int) -> str:
    """What has to agree in a family of atoms."""
    op = table.nodes[line].op
    if table.is_linear(line):
        return "sum"
    if op in {"min", "max"}:
        return "extreme"
    if op not in {"mul", "div", "pow", "sqrt"}:
        return op
    _, factors = table.monomial(line)
    if has_choice(table, factors):
        return "where"
    shape = sorted(p for k, p in factors.items() if table.nodes[k].op != "exp")
    return "product " + " ".join(map(str, shape))


@contextmanager
def _deep() -> Generator[None]:
    """Families inside families are lifted by recursion; long programs are deep."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
