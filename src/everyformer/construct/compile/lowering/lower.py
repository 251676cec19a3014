"""From steps of a program to heads and hidden units.

Each step becomes a *reading*, an affine combination of cells. Most steps are one head or
one group of units that writes one cell. Some need neither: a gather of each token by
itself, a scaling with one factor. A product is two squares, read as (p - m)/4.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import exp
from typing import Any

from everyformer.construct.compile import program as ir
from everyformer.construct.compile.lowering.constants import Constants
from everyformer.construct.compile.lowering.gadgets import (
    ONE,
    ZERO,
    Average,
    Cell,
    Head,
    Reading,
    Term,
    Units,
    UnitStep,
    Work,
)
from everyformer.construct.compile.lowering.macros import NormaliseMacro, ProductMacro
from everyformer.construct.compile.lowering.moves import (
    Scores,
    attend_scores,
    gather_scores,
    mean_scores,
    mixture,
    null_score,
    row_total,
    sum_scores,
)
from everyformer.construct.compile.lowering.unary import UnaryHeads, is_gauss
from everyformer.construct.compile.precision import Precision
from everyformer.construct.compile.ranges import Range, Ranges, function_range

SQUARE = ir.Function("pow", Fraction(2))
ROOT = ir.Function("pow", Fraction(-1, 2))
Summand = ir.Scale | ir.Relu | ir.Absolute


@dataclass(frozen=True, eq=False)
class _Known(ir.Step):
    """A step whose reading and range are given."""


class Lowering:
    """The heads and units of a program, in an order in which they can run.

    Attributes:
        constants: All cells.
        works: Heads and units, each after those whose cells it reads.
        outputs: What the coordinates of the result read.
        macros: What is to be said about several cells together.
        cell_ranges: Where the numbers in cells lie, as far as the steps say it.
        functions: The functions of one number, by the cell that a head fills with one, with
            the range of the argument.
    """

    def __init__(self, program: ir.Program, precision: Precision, steady: float) -> None:
        """Lower all steps."""
        steps = program.steps()
        self.program, self.precision = program, precision
        knots = any(isinstance(s, (ir.Unary, ir.Product, ir.Normalise)) for s in steps)
        null = any(_needs_null(s) for s in steps)
        self.constants = Constants(
            program.seq_len, has_prefix=knots or null, has_knots=knots
        )
        self.ranges = Ranges(program.box, program.seq_len, precision.largest)
        self.works: list[Work] = []
        gauss = [s for s in steps if isinstance(s, ir.Product | ir.Normalise)]
        smooth = [s for s in steps if isinstance(s, ir.Unary) and is_gauss(s.function)]
        self.unary = UnaryHeads(
            self.constants, shares_gauss=bool(gauss or smooth), steady=steady
        )
        self.macros: list[ProductMacro | NormaliseMacro] = []
        self.cell_ranges: dict[Cell, Range] = {}
        self.functions: dict[Cell, tuple[ir.Function, Range]] = {}
        self._readings: dict[ir.Step, Reading] = {}
        self._forms: dict[ir.Form, Reading] = {}
        self._quiet: dict[ir.Form, Reading] = {}
        self._groups: dict[ir.Normalised, list[Reading]] = {}
        self._fused = _fused(steps, program.outputs)
        alone = {s for group in self._fused.values() for s in group}
        for step in steps:
            self.ranges.step(step)
            if step not in alone:
                self.constants.origin = step.origin
                reading = self._lower(step)
                self._readings[step] = reading
                if reading.plain is not None:
                    self.cell_ranges[reading.plain] = self.ranges.step(step)
        self.outputs = [self.constants.bare(self.read(form)) for form in program.outputs]
        self.constants.close_gates()
        self.unary.finish()

    def read(self, form: ir.Form) -> Reading:
        """What a form reads."""
        if form not in self._forms:
            group = self._fused.get(form, ())
            total = Reading({}, form.offset)
            for step, coefficient in form.terms.items():
                if step not in group:
                    total = total + self._readings[step] * coefficient
            if group:
                reader, self.constants.origin = self.constants.origin, group[0].origin
                terms = [t for s in group for t in self._terms(s, form.terms[s])]
                total = total + self._sum("sum", terms)
                self.constants.origin = reader
            self._forms[form] = total
        return self._forms[form]

    def _lower(self, step: ir.Step) -> Reading:
        constants = self.constants
        match step:
            case ir.Input(channel=i):
                return Reading.of(constants.input(i))
            case ir.Constant(values=values):
                if len(set(values)) == 1:
                    return Reading({}, values[0])
                return Reading.of(constants.constant("given", values))
            case ir.Mean(value=form):
                if constants.n == 1:
                    return self.read(form)
                return self._move({"step": "mean"}, mean_scores(constants), form)
            case ir.Gather(value=form, tau=tau):
                return self.gather(form, tau)
            case ir.Mix():
                return self._mix(step)
            case ir.Attend():
                queries = [self.read(q) for q in step.queries]
                keys = [self.read(k) for k in step.keys]
                whole = step.faint is not None
                scores = attend_scores(constants, queries, keys, whole=whole)
                claim: dict[str, Any] = {"step": "attend"}
                if step.everyone:
                    claim["everyone"] = True
                if step.faint is not None:
                    claim["faint"] = str(step.faint)
                return self._move(claim, scores, step.value)
            case ir.ExponentialSum():
                return self._exponential_sum(step)
            case ir.Unary():
                return self._unary(step)
            case ir.Product(first=a, second=b):
                return self._product(a, b, self.precision.of("product"))
            case ir.Normalise(group=group, index=i):
                return self._normalised(group)[i]
            case ir.Maximum() | ir.Minimum():
                return self._compare(step)
            case ir.Exchange():
                return self._exchange(step)
            case ir.Scale() | ir.Relu() | ir.Absolute():
                if isinstance(step, ir.Scale) and len(set(step.factors)) == 1:
                    return self.read(step.value) * step.factors[0]
                terms = self._terms(step, ONE)
                return self._sum(type(step).__name__.lower(), terms)
            case _:
                msg = f"{type(step).__name__} is not a step of a program."
                raise TypeError(msg)

    def gather(self, form: ir.Form, tau: tuple[int, ...]) -> Reading:
        """v_tau(j)."""
        if tau == tuple(range(len(tau))):
            return self.read(form)
        claim = {"step": "gather", "tau": list(tau)}
        return self._move(claim, gather_scores(self.constants, tau), form)

    def _move(self, claim: dict[str, Any], scores: Scores, form: ir.Form) -> Reading:
        value = self.read(form)
        return self.move(claim, scores, value, ONE, self.ranges.of(form).size)

    def move(
        self,
        claim: dict[str, Any],
        scores: Scores,
        value: Reading,
        scale: Fraction,
        size: Fraction,
    ) -> Reading:
        """A head with one value, of this size on data tokens, written to a new cell."""
        bare = self.constants.bare(value)
        garbage = abs(scale) * max(bare.garbage, size)
        target = self.constants.work(str(claim["step"]), garbage)
        self.works.append(Head(claim, *scores, [Average(bare, scale, target)]))
        return Reading.of(target)

    def _exponential_sum(self, step: ir.ExponentialSum) -> Reading:
        """W sum_k e^(s_k) v_k / (e^c + sum_k e^(s_k)), W = e^c: off by S^2 V e^-c."""
        queries = [self.read(q) for q in step.queries]
        keys = [self._hushed(k) for k in step.keys]
        size = self.ranges.of(step.value).size
        highest = self.ranges.scores(step).high
        c = null_score(self.constants.n, highest, size, self.precision.of("function"))
        scores = sum_scores(self.constants, queries, keys, c)
        value = self._hushed(step.value)
        claim = {"step": "exponential sum"}
        return self.move(claim, scores, value, Fraction(exp(c)), size)

    def _unary(self, step: ir.Unary) -> Reading:
        value, power = self.read(step.value), step.function.power
        if power == 0:
            return Reading({}, ONE)
        if power == 1:
            return value
        known = self.ranges.of(step.value)
        accuracy = self.precision.of("function")
        return Reading.of(self._function(step.function, value, known, accuracy))

    def _function(
        self, function: ir.Function, value: Reading, known: Range, accuracy: Fraction
    ) -> Cell:
        head = self.unary.head(function, value, known, accuracy)
        self.works.append(head)
        (cell,) = head.targets
        self.functions[cell] = function, known
        return cell

    def _square(self, value: Reading, known: Range, accuracy: Fraction) -> Cell:
        cell = self._function(SQUARE, value, known, accuracy)
        self.cell_ranges[cell] = function_range(SQUARE, known, accuracy)
        return cell

    def _product(self, a: ir.Form, b: ir.Form, accuracy: Fraction) -> Reading:
        """a b = ((l a + b/l)^2 - (l a - b/l)^2)/4, l a power of two that balances sizes."""
        one, two = self.read(a), self.read(b)
        for constant, other in ((one, two), (two, one)):
            if not constant.terms:
                return other * constant.offset
        if one.signature == two.signature:
            return Reading.of(self._square(one, self.ranges.of(a), accuracy))
        balance = _balance(self.ranges.of(a).size, self.ranges.of(b).size)
        while not all((one * balance + two * s).terms for s in (1 / balance, -1 / balance)):
            balance *= 2  # u (1 - u): u + (1 - u) is a constant
        squares: list[Cell] = []
        for share in (1 / balance, -1 / balance):
            value = one * balance + two * share
            known = self.ranges.of(a * balance + b * share)
            squares.append(self._square(value, known, 2 * accuracy))
        plus, minus = squares
        self.macros.append(ProductMacro(plus, minus, balance))
        return Reading.of(plus, Fraction(1, 4)) - Reading.of(minus, Fraction(1, 4))

    def _normalised(self, group: ir.Normalised) -> list[Reading]:
        """c_i (delta + mean of c^2)^(-1/2): squares, one root, products; three blocks."""
        if group not in self._groups:
            self._groups[group] = self._normalise(group)
        return self._groups[group]

    def _normalise(self, group: ir.Normalised) -> list[Reading]:
        d, delta = len(group.parts), group.delta
        fine = self.precision.of("square") * delta
        squares = [
            self._square(self.read(part), self.ranges.of(part), fine)
            for part in group.parts
        ]
        mean, known = Reading({}, delta), Range(delta, delta)
        for cell in squares:
            mean = mean + Reading.of(cell, Fraction(1, d))
            known = known + self.cell_ranges[cell] * Fraction(1, d)
        size = max(self.ranges.of(part).size for part in group.parts)
        small = self.precision.of("root") / max(size, ONE)
        root = self._function(ROOT, mean, known, small)
        self.cell_ranges[root] = function_range(ROOT, known, small)
        step = _Known()
        self.ranges.know(step, self.cell_ranges[root])
        self._readings[step] = Reading.of(root)
        first = len(self.macros)
        factor = ir.Form.of(step)
        accuracy = self.precision.of("product")
        found = [self._product(part, factor, accuracy) for part in group.parts]
        products = [m for m in self.macros[first:] if isinstance(m, ProductMacro)]
        self.macros.append(NormaliseMacro(squares, root, products, delta))
        return found

    def _mix(self, step: ir.Mix) -> Reading:
        total = Reading({})
        for sign, A in _signed_parts(step):
            mix = mixture(self.constants, A)
            size = self.ranges.of(step.value).size
            value = self._hushed(step.value) if mix.has_null else self.read(step.value)
            moved = self.move(mix.claim, mix.scores, value, mix.total, size)
            total = total + moved * sign
        return total

    def _hushed(self, form: ir.Form) -> Reading:
        """What a form reads, or a copy, so that it is exactly 0 on prefix tokens."""
        if form not in self._quiet:
            value = self.constants.bare(self.read(form))
            if not all(cell.is_zero_on_prefix for cell in value.terms):
                size = self.ranges.of(form).size
                gate = self.constants.gate([True] * self.constants.n, size, value.garbage)
                value = self._sum("hushed copy", [Term("copy", value, ONE, gate)])
                for cell in value.terms:
                    cell.hushed, cell.garbage = True, ZERO
            self._quiet[form] = value
        return self._quiet[form]

    def _terms(self, step: ir.Step, factor: Fraction) -> list[Term]:
        """factor times a step, as part of a sum of units."""
        assert isinstance(step, Summand)  # noqa: S101
        value = self.read(step.value)
        if isinstance(step, ir.Relu):
            return [Term("relu", value, factor)]
        if isinstance(step, ir.Absolute):
            return [Term("abs", value, factor)]
        size = self.ranges.of(step.value).size
        distinct = sorted({c for c in step.factors if c})
        masks = [[c == own for c in step.factors] for own in distinct]
        gates = [self.constants.gate(mask, size, value.garbage) for mask in masks]
        return [
            Term("copy", value, factor * own, gate)
            for own, gate in zip(distinct, gates, strict=True)
        ]

    def _sum(self, name: str, terms: list[Term]) -> Reading:
        sizes = (2 * abs(t.factor) * t.value.garbage for t in terms)
        target = self.constants.work(name, sum(sizes, ZERO))
        self.works.append(Units("sum", target, tuple(terms)))
        return Reading.of(target)

    def _compare(self, step: ir.Maximum | ir.Minimum) -> Reading:
        name: UnitStep = "max" if isinstance(step, ir.Maximum) else "min"
        operands = self.read(step.first), self.read(step.second)
        target = self.constants.work(name, max(o.garbage for o in operands))
        self.works.append(Units(name, target, (), operands))
        return Reading.of(target)

    def _exchange(self, step: ir.Exchange) -> Reading:
        here = self.read(step.value)
        if step.tau == tuple(range(len(step.tau))):
            return here
        there = self.gather(step.value, step.tau)
        low = [
            None if partner == j else keeps
            for j, (partner, keeps) in enumerate(zip(step.tau, step.low, strict=True))
        ]
        size = 2 * self.ranges.of(step.value).size
        garbage = here.garbage + there.garbage
        gates = self.constants.opposite_gates(low, size, garbage)
        target = self.constants.work("exchange", here.garbage)  # both are closed there
        self.works.append(Units("exchange", target, (), (here, there), gates))
        return Reading.of(target)


def _balance(a: Fraction, b: Fraction) -> Fraction:
    """2^round(log2(b/a)/2)."""
    if not a or not b:
        return ONE
    ratio = b / a
    exponent = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    return Fraction(2) ** round(exponent / 2)


def _needs_null(step: ir.Step) -> bool:
    if not isinstance(step, ir.Mix):
        return isinstance(step, ir.ExponentialSum)
    return any(row_total(A)[1] for _, A in _signed_parts(step))


def _signed_parts(step: ir.Mix) -> Iterator[tuple[int, list[list[Fraction]]]]:
    """The positive and the negative part of a matrix, each >= 0; not one that is 0."""
    for sign in (1, -1):
        A = [[max(sign * entry, ZERO) for entry in row] for row in step.matrix]
        if any(map(any, A)):
            yield sign, A


def _fused(
    steps: Iterable[ir.Step], outputs: Iterable[ir.Form]
) -> dict[ir.Form, list[Summand]]:
    """Scalings, ReLUs and absolute values that one form alone reads: one sum of units."""
    forms: dict[ir.Form, None] = {}
    for step in steps:
        forms |= dict.fromkeys(step.reads)
    forms |= dict.fromkeys(outputs)
    readers: dict[ir.Step, list[ir.Form]] = {}
    for form in forms:
        for step in form:
            readers.setdefault(step, []).append(form)
    groups: dict[ir.Form, list[Summand]] = {}
    for step, found in readers.items():
        uniform = isinstance(step, ir.Scale) and len(set(step.factors)) == 1
        if isinstance(step, Summand) and not uniform and len(found) == 1:
            groups.setdefault(found[0], []).append(step)
    return {form: group for form, group in groups.items() if len(group) > 1}
