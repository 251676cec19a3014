"""The invariant of normal forms: a term has the value of its expression."""

import operator
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.certify.compile.algebra.normal_forms import Algebra
from everyformer.certify.compile.algebra.terms import Term
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.expression import Expression, Node
from everyformer.targets.box import Box

pytestmark = pytest.mark.unhooked  # a check of types for each call takes minutes

D = 3
BALLS = BallArithmetic(200)
TOUCHES_ZERO = {"where", "sqrt", "log", "xlogx"}
"""Operations that balls cannot do at the end of their domain."""


class Values:
    """The value of terms at a point, in balls, from what atoms and monomials say."""

    def __init__(self, algebra: Algebra, x: list[Any]) -> None:
        self.algebra = algebra
        self.x = x
        self.inputs = {algebra.entry(0, i): x[i] for i in range(D)}
        self.known: dict[int, Any] = {}

    def of(self, term: Term) -> Any:
        if term in self.inputs:
            return self.inputs[term]
        if term.serial not in self.known:
            value = BALLS.constant(Fraction(0))
            for monomial in term.numerators:
                factor = BALLS.constant(term.coefficient(monomial))
                value = value + factor * self._monomial(monomial)
            self.known[term.serial] = value
        return self.known[term.serial]

    def _monomial(self, monomial: int) -> Any:
        factors, exponent = self.algebra.parts(monomial)
        value = BALLS.constant(Fraction(1))
        for atom, k in factors:
            base = self._atom(atom)
            power = base if abs(k) == 1 else BALLS.pow(base, abs(k))
            value = value * power if k > 0 else value / power
        return value if exponent is None else value * self.of(exponent).exp()

    def _atom(self, atom: int) -> Any:
        name, arguments = self.algebra.atom_parts(atom)
        if name == "x":
            (i,) = [
                i
                for i in range(D)
                if self.algebra.parts(*self.algebra.entry(0, i).numerators)[0]
                == ((atom, 1),)
            ]
            return self.x[i]
        values = [self.of(argument) for argument in arguments]
        if name in {"div", "pow"}:  # by the number 0
            return BALLS.div(BALLS.constant(Fraction(1)), BALLS.constant(Fraction(0)))
        if name == "sum":
            return values[0]
        if name in {"max", "min"}:
            result = values[0]
            for value in values[1:]:
                result = getattr(BALLS, name)(result, value)
            return result
        return getattr(BALLS, name)(*values)


NUMBERS = [Fraction(n) for n in (0, 1, 2, -1, -2, 3)] + [Fraction(1, 2), Fraction(-3, 7)]
UNARY = ("neg", "abs", "exp", "log", "sqrt", "sin", "cos", "tanh", "xlogx")
BINARY = ("add", "sub", "mul", "div", "min", "max", "add", "mul", "div")


Line = tuple[str, float, float, float, int]
"""A kind of operation, three numbers in [0, 1) that choose earlier lines, and a choice."""


def lines() -> st.SearchStrategy[list[Line]]:
    """Random operations, as plain data."""
    kinds = st.sampled_from(["unary", "binary", "binary", "binary", "pow", "where"])
    share = st.floats(0, 1, exclude_max=True)
    line = st.tuples(kinds, share, share, share, st.integers(0, 10**6))
    return st.lists(line, min_size=1, max_size=14)


def expression_of(numbers: list[Fraction], chosen: list[Line]) -> Expression:
    """A program of the entries, some numbers and the operations."""
    nodes = [Node("x", (0, i)) for i in range(D)]
    nodes += [Node("const", value=q) for q in numbers]
    for kind, *shares, choice in chosen:
        a, b, c = (int(share * len(nodes)) for share in shares)
        if kind == "unary":
            nodes.append(Node(UNARY[choice % len(UNARY)], (a,)))
        elif kind == "binary":
            nodes.append(Node(BINARY[choice % len(BINARY)], (a, b)))
        elif kind == "pow":
            nodes.append(Node("pow", (a, choice % 9 - 4)))
        else:
            nodes.append(Node("where", (a, b, c)))
    last = len(nodes) - 1
    return Expression(1, D, tuple(nodes), ((last, last - 1, last - 2),))


def points() -> st.SearchStrategy[list[Fraction]]:
    numbers = st.fractions(-3, 3, max_denominator=64)
    return st.lists(numbers, min_size=D, max_size=D)


NUMBER_LISTS = st.lists(st.sampled_from(NUMBERS), min_size=2, max_size=3)


@settings(max_examples=60, deadline=None)
@given(NUMBER_LISTS, lines(), st.lists(points(), min_size=1, max_size=3))
def test_a_term_is_defined_where_the_expression_is_and_has_its_value(
    numbers: list[Fraction], chosen: list[Line], places: list[list[Fraction]]
) -> None:
    expression = expression_of(numbers, chosen)
    operations = {node.op for node in expression.nodes}
    algebra = Algebra()
    terms = expression.run(algebra, algebra.entry)[0]
    with BALLS.working():
        for place in places:
            x = [BALLS.constant(q) for q in place]
            expected = expression.run(BALLS, lambda _, i, x=x: x[i])[0]
            found = Values(algebra, x)
            for term, value in zip(terms, expected, strict=True):
                if value.is_finite() and value.rad() < 2.0**-60:
                    assert found.of(term).overlaps(value)
                    if not operations & TOUCHES_ZERO:
                        assert found.of(term).is_finite()


@settings(max_examples=40, deadline=None)
@given(NUMBER_LISTS, st.lists(lines(), min_size=6, max_size=6), points())
def test_equal_terms_have_equal_values(
    numbers: list[Fraction], programs: list[list[Line]], place: list[Fraction]
) -> None:
    algebra = Algebra()
    seen: dict[Term, Any] = {}
    with BALLS.working():
        x = [BALLS.constant(q) for q in place]
        for chosen in programs:
            expression = expression_of(numbers, chosen[:4])
            terms = expression.run(algebra, algebra.entry)[0]
            values = expression.run(BALLS, lambda _, i: x[i])[0]
            for term, value in zip(terms, values, strict=True):
                if value.is_finite():
                    assert seen.setdefault(term, value).overlaps(value)


def identities(a: Term, b: Term, c: Term, f: Algebra) -> list[tuple[Term, Term]]:
    """Pairs that are equal wherever both are defined."""
    two = f.constant(Fraction(2))
    return [
        (f.mul(a, f.add(b, c)), f.add(f.mul(a, b), f.mul(a, c))),
        (f.div(f.mul(a, b), c), f.mul(a, f.div(b, c))),
        (f.pow(f.sub(a, b), 2), f.pow(f.sub(b, a), 2)),
        (f.exp(f.sub(a, b)), f.div(f.exp(a), f.exp(b))),
        (f.max(a, f.max(b, c)), f.max(f.max(c, a), b)),
        (f.abs(f.sub(a, b)), f.sub(f.mul(two, f.max(a, b)), f.add(a, b))),
        (f.logistic(a), f.sub(f.one, f.logistic(f.neg(a)))),
        (f.where(a, f.add(b, a), b), f.add(b, f.relu(a))),
        (f.sqrt(f.pow(f.sqrt(a), 2)), f.sqrt(a)),
        (f.softmax_average([a, b], [c, a]), f.softmax_average([b, a], [a, c])),
    ]


@settings(max_examples=40, deadline=None)
@given(NUMBER_LISTS, lines(), st.integers(0, 9))
def test_true_identities_do_not_crash_and_small_ones_are_seen(
    numbers: list[Fraction], chosen: list[Line], which: int
) -> None:
    algebra = Algebra()
    a, b, c = expression_of(numbers, chosen).run(algebra, algebra.entry)[0]
    identities(a, b, c, algebra)
    x, y, z = (algebra.entry(0, i) for i in range(D))
    left, right = identities(x, y, z, algebra)[which]
    assert left is right


Choice = tuple[int, int, int, bool, int, int]
PIECES = st.integers(-4, 4)
CHOICES = st.tuples(
    st.sampled_from([-2, -1, 1, 3]), PIECES, PIECES, st.booleans(), PIECES, PIECES
)


def nested(f: Any, x: Any, choices: list[Choice]) -> Any:
    """Choices inside choices, by one condition or by two; each with a branch of its own."""

    def line(slope: int, offset: int) -> Any:
        scaled = f.mul(f.constant(Fraction(slope)), x)
        return f.add(scaled, f.constant(Fraction(offset, 2)))

    one, zero = f.constant(Fraction(1)), f.constant(Fraction(0))
    value = line(1, 0)
    for k, (slope, offset, other, both, a, b) in enumerate(choices):
        condition = line(slope, offset)
        if k % 2:
            truths = [f.where(condition, one, zero), f.where(line(-1, other), zero, one)]
            condition = (f.min if both else f.max)(*truths)
        branch = f.max(line(a, b), zero) if k == 1 else line(a, b)
        value = f.where(condition, *((branch, value) if both else (value, branch)))
    return value


@settings(max_examples=150, deadline=None)
@given(st.lists(CHOICES, min_size=1, max_size=4), st.integers(-12, 12))
def test_choices_inside_choices_have_their_value(choices: list[Choice], place: int) -> None:
    """Also on the borders, which are multiples of 1/2 and of 1/6."""
    algebra = Algebra()
    term = nested(algebra, algebra.entry(0, 0), choices)
    exact = nested(Exactly(), Fraction(place, 6), choices)
    found = Exactly([Fraction(place, 6)]).of(algebra, term)
    assert found == exact


def joined(f: Any, x: Any, y: Any, choices: list[Choice]) -> Any:
    """Choices between curved pieces; most of them meet, those with b = 4 do not."""

    def line(slope: int, offset: int, of: Any) -> Any:
        scaled = f.mul(f.constant(Fraction(slope)), of)
        return f.add(scaled, f.constant(Fraction(offset, 2)))

    value = f.mul(x, y)
    for slope, offset, other, swapped, a, b in choices:
        condition = line(slope, offset, x)
        if other > 0:
            condition = f.sub(f.max(condition, f.sub(y, x)), f.constant(Fraction(other, 2)))
        step = f.mul(condition, line(a, b, condition if other < 0 else x))
        if b == 4:
            step = f.add(step, f.constant(Fraction(1, 10**6)))
        pair = (f.add(value, step), value)
        value = f.where(condition, *(pair[::-1] if swapped else pair))
    return value


@settings(max_examples=60, deadline=None)
@given(st.lists(CHOICES, min_size=1, max_size=3), st.integers(-12, 12), st.integers(-6, 6))
def test_curved_pieces_have_their_value_and_are_opened_if_they_meet(
    choices: list[Choice], place: int, beside: int
) -> None:
    """On borders too. A step of 1e-6 is never opened, except by an empty choice."""
    algebra = Algebra(box=Box((-2.0, -1.0), (2.0, 1.0)))
    x, y = (algebra.entry(0, i) for i in range(2))
    term = joined(algebra, x, y, choices)
    at = Fraction(place, 6), Fraction(beside, 6)
    assert Exactly(at).of(algebra, term) == joined(Exactly(at), *at, choices)
    if len(choices) == 1:
        *_, b = choices[0]
        names = {
            algebra.atom_parts(atom)[0]
            for m in term.numerators
            for atom, _ in algebra.parts(m)[0]
        }
        assert ("where" in names) == (b == 4)


class Exactly:
    """Piecewise polynomials in rationals, terms at one place."""

    def __init__(self, place: Sequence[Fraction] = ()) -> None:
        self.place = place

    @staticmethod
    def constant(value: Fraction) -> Fraction:
        return value

    add, mul = staticmethod(operator.add), staticmethod(operator.mul)
    sub = staticmethod(operator.sub)
    min, max = staticmethod(min), staticmethod(max)

    @staticmethod
    def where(c: Fraction, a: Fraction, b: Fraction) -> Fraction:
        return a if c > 0 else b

    def of(self, algebra: Algebra, term: Term) -> Fraction:
        entries = {algebra.entry(0, i): x for i, x in enumerate(self.place)}
        atoms = {
            algebra.parts(*entry.numerators)[0][0][0]: x for entry, x in entries.items()
        }
        total = Fraction(0)
        for monomial in term.numerators:
            factors, exponent = algebra.parts(monomial)
            assert exponent is None
            value = term.coefficient(monomial)
            for atom, k in factors:
                name, arguments = algebra.atom_parts(atom)
                parts = [self.of(algebra, t) for t in arguments]
                base = atoms[atom] if name == "x" else getattr(self, name)(*parts)
                value *= base**k
            total += value
        return total


def test_clips_are_seen_however_they_are_written() -> None:
    f = Algebra()
    x, low, high = f.entry(0, 0), f.constant(Fraction(1, 4)), f.constant(Fraction(3, 4))
    clip = f.min(f.max(x, low), high)
    above, below = f.sub(x, high), f.sub(low, x)
    assert f.where(below, low, f.where(above, high, x)) is clip
    assert f.where(above, high, f.where(below, low, x)) is clip
    one = f.constant(Fraction(1))
    inside = f.min(f.where(f.neg(below), one, f.zero), f.where(f.neg(above), one, f.zero))
    outside = f.where(f.neg(above), low, high)
    assert f.where(inside, x, outside) is clip
    wrong = f.where(f.neg(above), f.zero, high)
    assert f.where(inside, x, wrong) is not clip
    assert f.where(below, low, f.where(above, low, x)) is not clip
