"""Makes steps and forms, each of them once; and the range of numbers that a form has."""

from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction

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

    def _made(self, key: Hashable, make: Callable[[], Step]) -> Form:
        step = self._steps.get(key)
        if step is None:
            step = self._steps[key] = make()
        return self.form(Form.of(step))

    def input(self, channel: int) -> Form:
        """x[j][channel]."""
        return self._made(("input", channel), lambda: Input(channel, origin=f"x{channel}"))

    def constants(self, values: Sequence[Rational]) -> Form:
        """A number for each token."""
        if len(set(values)) == 1:
            return self.form(Form.constant(values[0]))
        row = tuple(map(Fraction, values))
        return self._made(("constant", row), lambda: Constant(row, origin="positions"))

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
        if self.is_uniform(value):
            return value
        plain = self.form(value)
        return self._made(
            ("mean", self._key(plain)), lambda: Mean(plain, origin=self.origin)
        )

    def gather(self, value: Form, tau: Sequence[int]) -> Form:
        """v_tau(j)."""
        row = tuple(tau)
        if row == tuple(range(self.n)) or self.is_uniform(value):
            return value
        plain = self.form(value)
        key = ("gather", self._key(plain), row)
        return self._made(key, lambda: Gather(plain, row, origin=self.origin))

    def mix(self, value: Form, matrix: Sequence[Sequence[Fraction]]) -> Form:
        """sum_k A_jk v_k."""
        rows = tuple(tuple(row) for row in matrix)
        plain = self.form(value)
        key = ("mix", self._key(plain), rows)
        return self._made(key, lambda: Mix(plain, rows, origin=self.origin))

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
        plain = self.form(value)
        key = ("scale", self._key(plain), row)
        return self._made(key, lambda: Scale(plain, row, origin=self.origin))

    def unary(self, name: FunctionName, value: Form, power: Rational | None = None) -> Form:
        """fn(v_j)."""
        if power == 1:
            return value
        known = None if value.terms else _exact(name, value.offset, power)
        if known is not None:
            return self.form(Form.constant(known))
        plain = self.form(value)
        exponent = None if power is None else Fraction(power)
        key = ("unary", name, exponent, self._key(plain))
        return self._made(
            key, lambda: Unary(plain, Function(name, exponent), origin=self.origin)
        )

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
        first, second = self.form(a), self.form(b)
        key = ("product", frozenset((self._key(first), self._key(second))))
        return self._made(key, lambda: Product(first, second, origin=self.origin))

    def relu(self, value: Form) -> Form:
        """max(v_j, 0), also where the range decides: the verifier compares with f."""
        plain = self.form(value)
        if not plain.terms:
            return self.form(Form.constant(max(plain.offset, Fraction(0))))
        return self._made(
            ("relu", self._key(plain)), lambda: Relu(plain, origin=self.origin)
        )

    def absolute(self, value: Form) -> Form:
        """|v_j|."""
        plain = self.form(value)
        if not plain.terms:
            return self.form(Form.constant(abs(plain.offset)))
        return self._made(
            ("abs", self._key(plain)), lambda: Absolute(plain, origin=self.origin)
        )

    def extreme(self, op: str, a: Form, b: Form) -> Form:
        """max(a_j, b_j) or min(a_j, b_j); against a constant by a ReLU."""
        if self._key(a) == self._key(b):
            return a
        for first, second in ((a, b), (b, a)):
            if all(isinstance(step, Constant) for step in first):
                if op == "max":
                    return self.form(first + self.relu(second - first))
                return self.form(first - self.relu(first - second))
        first, second = self.form(a), self.form(b)
        key = (op, frozenset((self._key(first), self._key(second))))
        kind = Maximum if op == "max" else Minimum
        return self._made(key, lambda: kind(first, second, origin=self.origin))

    def exchange(self, value: Form, tau: Sequence[int], low: Sequence[bool]) -> Form:
        """Compare with a partner."""
        plain, partners, lows = self.form(value), tuple(tau), tuple(low)
        key = ("exchange", self._key(plain), partners, lows)
        return self._made(key, lambda: Exchange(plain, partners, lows, origin=self.origin))

    def normalise(self, parts: Sequence[Form], delta: Fraction, index: int) -> Form:
        """c_index / sqrt(mean of c^2 + delta)."""
        plain = tuple(self.form(part) for part in parts)
        key = ("normalised", tuple(self._key(part) for part in plain), delta)
        group = self._groups.setdefault(key, Normalised(plain, delta))
        return self._made(
            (*key, index), lambda: Normalise(group, index, origin=self.origin)
        )

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
        q, k = tuple(map(self.form, queries)), tuple(map(self.form, keys))
        offset = Form.constant(value.offset)
        plain = self.form(value - offset)
        key = (
            "attend",
            tuple(map(self._key, q)),
            tuple(map(self._key, k)),
            self._key(plain),
            everyone,
            faint,
        )
        made = self._made(
            key, lambda: Attend(q, k, plain, everyone, faint, origin=self.origin)
        )
        return self.form(made + offset)

    def exponential_sum(
        self, queries: Sequence[Form], keys: Sequence[Form], value: Form
    ) -> Form:
        """sum_k e^(q_j . k_k) v_k."""
        q, k = tuple(map(self.form, queries)), tuple(map(self.form, keys))
        plain = self.form(value)
        rows = tuple(map(self._key, q)), tuple(map(self._key, k))
        return self._made(
            ("exponential sum", *rows, self._key(plain)),
            lambda: ExponentialSum(q, k, plain, origin=self.origin),
        )


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
