"""Makes steps and forms, each of them once; and the range of numbers that a form has."""

from collections.abc import Hashable, Sequence
from fractions import Fraction
from typing import Any

from everyformer.construct.compile.lifting.lines import Rational
from everyformer.construct.compile.program import (
    Absolute,
    Attend,
    Constant,
    Exchange,
    ExponentialSum,
    Form,
    Function,
    FunctionName,
    Gather,
    Input,
    Maximum,
    Mean,
    Minimum,
    Mix,
    Normalise,
    Normalised,
    OfScores,
    Product,
    Relu,
    Scale,
    Step,
    Unary,
)
from everyformer.construct.compile.ranges import Range, Ranges
from everyformer.targets.box import Box

FormKey = tuple[frozenset[tuple[int, Rational]], Fraction]


class Builder:
    """A store of steps: what is asked for twice is the same object.

    Attributes:
        n: The number of tokens.
        origin: What the next new step says of its place in the user's program.
    """

    def __init__(self, n: int, box: Box) -> None:
        """Begin with no steps."""
        self.n = n
        self.origin = ""
        self._ranges = Ranges(box, n)
        self._steps: dict[Hashable, Step] = {}
        self._forms: dict[FormKey, Form] = {}
        self._groups: dict[Hashable, Normalised] = {}
        self._uniform: dict[Step, bool] = {}

    @property
    def count(self) -> int:
        """How many steps there are."""
        return len(self._steps)

    def range(self, form: Form) -> Range:
        """Where the numbers of a form lie, whatever x."""
        return self._ranges.of(form)

    def form(self, form: Form) -> Form:
        """The same form, as the object that stands for all equal ones."""
        return self._forms.setdefault(self._key(form), form)

    def _key(self, form: Form) -> FormKey:
        return frozenset((id(s), c) for s, c in form.terms.items()), form.offset

    def _made(
        self,
        kind: type[Step],
        *parts: Any,
        unordered: bool = False,
        origin: str | None = None,
    ) -> Form:
        """The step of a kind with these parts: forms, rows of them, and plain values."""
        own = tuple(map(self._shared, parts))
        key = kind, frozenset(own) if unordered else own
        step = self._steps.get(key)
        if step is None:
            made = kind(*own, origin=self.origin if origin is None else origin)
            step = self._steps[key] = made
        return self.form(Form.of(step))

    def _shared(self, part: Any) -> Any:
        """A part whose forms are the objects that stand for all equal ones."""
        if isinstance(part, tuple):
            return tuple(map(self._shared, part))
        return self.form(part) if isinstance(part, Form) else part

    def input(self, channel: int) -> Form:
        """x[j][channel]."""
        return self._made(Input, channel, origin=f"x{channel}")

    def constants(self, values: Sequence[Rational]) -> Form:
        """A number for each token."""
        if len(set(values)) == 1:
            return self.form(Form.constant(values[0]))
        return self._made(Constant, tuple(map(Fraction, values)), origin="positions")

    def is_uniform(self, form: Form) -> bool:
        """Whether all tokens have the same number, as far as its steps show it."""
        return all(self._is_uniform(step) for step in form)

    def _is_uniform(self, step: Step) -> bool:
        known = self._uniform.get(step)
        if known is None:
            known = self._uniform[step] = self._looks_uniform(step)
        return known

    def _looks_uniform(self, step: Step) -> bool:
        match step:
            case Mean():
                return True
            case Gather():
                return len(set(step.tau)) == 1 or self.is_uniform(step.value)
            case Mix():
                return len(set(step.matrix)) == 1
            case Input() | Constant() | Exchange() | Scale() | OfScores():
                return False
            case _:
                return all(self.is_uniform(form) for form in step.reads)

    def mean(self, value: Form) -> Form:
        """(1/n) sum_k v_k."""
        return value if self.is_uniform(value) else self._made(Mean, value)

    def gather(self, value: Form, tau: Sequence[int]) -> Form:
        """v_tau(j)."""
        row = tuple(tau)
        if row == tuple(range(self.n)) or self.is_uniform(value):
            return value
        return self._made(Gather, value, row)

    def mix(self, value: Form, matrix: Sequence[Sequence[Fraction]]) -> Form:
        """sum_k A_jk v_k."""
        return self._made(Mix, value, tuple(tuple(row) for row in matrix))

    def scale(self, value: Form, factors: Sequence[Rational]) -> Form:
        """c_j v_j."""
        row = tuple(map(Fraction, factors))
        if len(set(row)) == 1:
            return self.form(value * row[0])
        if not value.terms:
            return self.constants([value.offset * c for c in row])
        if value.offset:
            rest = self.scale(value - Form.constant(value.offset), row)
            return self.form(rest + self.constants([value.offset * c for c in row]))
        return self._made(Scale, value, row)

    def unary(self, name: FunctionName, value: Form, power: Rational | None = None) -> Form:
        """fn(v_j)."""
        if power == 1:
            return value
        known = None if value.terms else _exact(name, value.offset, power)
        if known is not None:
            return self.form(Form.constant(known))
        exponent = None if power is None else Fraction(power)
        return self._made(Unary, value, Function(name, exponent))

    def product(self, a: Form, b: Form) -> Form:
        """a_j b_j; a constant factor is a multiple, equal factors a square."""
        for first, second in ((a, b), (b, a)):
            if not first.terms:
                return self.form(second * first.offset)
            known = first.by_tokens(self.n)
            if known is not None:
                return self.scale(second, known)
        if self._key(a) == self._key(b):
            return self.unary("pow", a, Fraction(2))
        return self._made(Product, a, b, unordered=True)

    def relu(self, value: Form) -> Form:
        """max(v_j, 0), also where the range decides: the verifier compares with f."""
        if not value.terms:
            return self.form(Form.constant(max(value.offset, Fraction(0))))
        return self._made(Relu, value)

    def absolute(self, value: Form) -> Form:
        """|v_j|."""
        if not value.terms:
            return self.form(Form.constant(abs(value.offset)))
        return self._made(Absolute, value)

    def extreme(self, op: str, a: Form, b: Form) -> Form:
        """max(a_j, b_j) or min(a_j, b_j); against a constant by a ReLU."""
        if self._key(a) == self._key(b):
            return a
        for first, second in ((a, b), (b, a)):
            if all(isinstance(step, Constant) for step in first):
                if op == "max":
                    return self.form(first + self.relu(second - first))
                return self.form(first - self.relu(first - second))
        return self._made(Maximum if op == "max" else Minimum, a, b, unordered=True)

    def exchange(self, value: Form, tau: Sequence[int], low: Sequence[bool]) -> Form:
        """Compare with a partner."""
        return self._made(Exchange, value, tuple(tau), tuple(low))

    def normalise(self, parts: Sequence[Form], delta: Fraction, index: int) -> Form:
        """c_index / sqrt(mean of c^2 + delta)."""
        plain = tuple(map(self.form, parts))
        key = plain, delta
        group = self._groups.setdefault(key, Normalised(plain, delta))
        return self._made(Normalise, group, index)

    def attend(
        self,
        queries: Sequence[Form],
        keys: Sequence[Form],
        value: Form,
        *,
        everyone: bool = False,
        faint: Fraction | None = None,
    ) -> Form:
        """sum_k softmax_k(q_j . k_k) v_k."""
        if not value.terms or self.is_uniform(value):
            return value
        offset = Form.constant(value.offset)
        plain = value - offset
        made = self._made(Attend, tuple(queries), tuple(keys), plain, everyone, faint)
        return self.form(made + offset)

    def exponential_sum(
        self, queries: Sequence[Form], keys: Sequence[Form], value: Form
    ) -> Form:
        """sum_k e^(q_j . k_k) v_k."""
        return self._made(ExponentialSum, tuple(queries), tuple(keys), value)


def _exact(name: FunctionName, t: Fraction, power: Rational | None) -> Fraction | None:
    """The value of a function where it is rational and that is plain to see."""
    if power is not None:
        whole = power.denominator == 1
        if t == 0 and power > 0:
            return Fraction(0)
        if t and whole:
            return t ** int(power)
        return Fraction(1) if t == 1 else None
    at_zero: dict[FunctionName, Fraction] = {
        "exp": Fraction(1),
        "sin": Fraction(0),
        "cos": Fraction(1),
        "tanh": Fraction(0),
        "logistic": Fraction(1, 2),
    }
    if t == 0:
        return at_zero.get(name)
    return Fraction(0) if name == "log" and t == 1 else None
