"""Numbers that are not known yet: what a traced function computes with.

A `Term` is one line of a recorder. Arithmetic with terms, and what numpy calls on an array
of objects, adds lines to it.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from everyformer.targets.recorder import Recorder

NO_BRANCHES = "The trace is one straight line for all x: use np.where(condition, a, b)"
NO_INFINITY = (
    "It is not a real number. In a mask of scores it is known: np.exp makes it 0, np.max "
    "passes over it, and numbers may be added to it"
)


def _operation(op: str) -> Callable[..., "Term"]:
    def method(self: "Term", *others: Any) -> "Term":
        terms = [self.recorder.term(other) for other in others]
        return self.recorder.operation(op, self, *terms)

    method.__doc__ = f"Write the line {op!r}."
    return method


def _refused(what: str, why: str) -> Callable[..., Any]:
    def method(self: "Term", *args: Any) -> NoReturn:
        self.recorder.refuse(what, why)

    return method


class Term:
    """A number that is not known yet: a line of a recorder.

    numpy's functions for arrays of objects call these methods entry by entry. A truth value
    is 1 or 0; arithmetic makes a number of it.
    """

    __slots__ = ("boolean", "number", "recorder")

    def __init__(self, recorder: "Recorder", number: int, *, boolean: bool = False) -> None:
        """Name the line `number` of `recorder`."""
        self.recorder = recorder
        self.number = number
        self.boolean = boolean

    @property
    def value(self) -> Fraction | None:
        """The number, where it is known."""
        return self.recorder.nodes[self.number].value

    __add__ = __radd__ = _operation("add")
    __sub__ = _operation("sub")
    __mul__ = __rmul__ = _operation("mul")
    __truediv__ = _operation("div")
    __neg__ = _operation("neg")
    __abs__ = fabs = _operation("abs")
    __bool__ = _refused("A condition on an entry of x", NO_BRANCHES)
    __eq__ = _refused("The comparison of an entry of x", NO_BRANCHES)
    __hash__ = None  # pyright: ignore[reportAssignmentType]
    maximum, minimum = _operation("max"), _operation("min")
    exp, log, sqrt = _operation("exp"), _operation("log"), _operation("sqrt")
    sin, cos, tanh = _operation("sin"), _operation("cos"), _operation("tanh")

    def __rsub__(self, other: Any) -> "Term":
        return self.recorder.term(other) - self

    def __rtruediv__(self, other: Any) -> "Term":
        return self.recorder.term(other) / self

    def __pow__(self, exponent: Any) -> "Term":
        return self.recorder.power(self, self.recorder.term(exponent))

    def __pos__(self) -> "Term":
        return self

    def where(self, a: "Term", b: "Term") -> "Term":
        """a if self > 0, else b."""
        return self.recorder.where(self, a, b)

    def exceeds(self, other: "Term") -> "Term":
        """The truth value of self > other."""
        one, zero = self.recorder.constant(1), self.recorder.constant(0)
        difference = -other if self.value == 0 else self - other
        return difference.where(one, zero).truth()

    def reaches(self, other: "Term") -> "Term":
        """The truth value of self >= other: not self < other."""
        return other.exceeds(self).negated()

    def equals(self, other: "Term") -> "Term":
        """The truth value of self == other: both >= and <=."""
        return self.reaches(other).both(other.reaches(self))

    def differs(self, other: "Term") -> "Term":
        """The truth value of self != other."""
        return self.equals(other).negated()

    def both(self, other: "Term") -> "Term":
        """The truth value of self and other."""
        return self.minimum(other).truth()

    def either(self, other: "Term") -> "Term":
        """The truth value of self or other."""
        return self.maximum(other).truth()

    def negated(self) -> "Term":
        """The truth value of not self."""
        return self.where(self.recorder.constant(0), self.recorder.constant(1)).truth()

    def one_of_two(self, other: "Term") -> "Term":
        """The truth value of self or other, but not both."""
        return self.either(other).both(self.both(other).negated())

    def truth(self) -> "Term":
        """The same line, as a truth value."""
        return Term(self.recorder, self.number, boolean=True)

    def as_number(self) -> "Term":
        """The same line, as a number."""
        return Term(self.recorder, self.number) if self.boolean else self

    def sign(self) -> "Term":
        """1, 0 or -1."""
        one, zero = self.recorder.constant(1), self.recorder.constant(0)
        return self.where(one, (-self).where(-one, zero))

    def heaviside(self, at_zero: "Term") -> "Term":
        """1, 0, or what is given for 0."""
        one, zero = self.recorder.constant(1), self.recorder.constant(0)
        return self.where(one, (-self).where(zero, at_zero))

    def tan(self) -> "Term":
        """sin / cos."""
        return self.sin() / self.cos()

    def sinh(self) -> "Term":
        """(e^x - e^-x) / 2."""
        return (self.exp() - (-self).exp()) / 2

    def cosh(self) -> "Term":
        """(e^x + e^-x) / 2."""
        return (self.exp() + (-self).exp()) / 2

    def expm1(self) -> "Term":
        """e^x - 1."""
        return self.exp() - 1

    def log1p(self) -> "Term":
        """log(1 + x)."""
        return (self + 1).log()

    def exp2(self) -> "Term":
        """2 to the power self, e^(x log 2)."""
        return (self * self.recorder.constant(2).log()).exp()

    def log2(self) -> "Term":
        """log(x) / log(2)."""
        return self.log() / self.recorder.constant(2).log()

    def log10(self) -> "Term":
        """log(x) / log(10)."""
        return self.log() / self.recorder.constant(10).log()

    def hypot(self, other: "Term") -> "Term":
        """The square root of x^2 + y^2."""
        return (self * self + other * other).sqrt()

    def logaddexp(self, other: "Term") -> "Term":
        """log(e^x + e^y)."""
        return (self.exp() + other.exp()).log()


class Nowhere(Term):
    """-inf, as masks put it in the place of scores: max passes over it, exp makes it 0.

    It has no line. It may be added to, scaled by numbers > 0, compared by max and min, and
    be an exponent; whatever else asks for its line is refused. What was added to it takes
    no part any more, but has to be defined: see `Recorder.check_dropped`.
    """

    __slots__ = ()

    def __init__(self, recorder: "Recorder") -> None:
        """-inf of a recorder."""
        self.recorder, self.boolean = recorder, False

    @property
    def number(self) -> NoReturn:  # pyright: ignore[reportIncompatibleVariableOverride]
        """It has none."""
        self.recorder.refuse("The constant -inf", NO_INFINITY)
