"""The intermediate language: what each register of a token holds, step by step.

A *step* is one number for each token: an entry of x, a constant, or what one gadget of
docs/constructions/compile.md makes of earlier steps. A *form* is an affine combination of
steps; linear operations cost nothing, since the next head or unit reads the form. A program
is d forms, the coordinates of every token's result.

    Input(i)                 x[j][i]
    Constant(values)         values[j]
    Mean(v)                  (1/n) sum_k v_k
    Gather(v, tau)           v_tau(j)
    Mix(v, A)                sum_k A_jk v_k
    Unary(fn, v)             fn(v_j)
    Product(a, b)            a_j b_j
    Normalise(c, delta, i)   c_i / sqrt(mean of c^2 + delta), all of token j
    Attend(q, k, v)          sum_k softmax_k(q_j . k_k) v_k
    ExponentialSum(q, k, v)  sum_k e^(q_j . k_k) v_k
    Maximum(a, b), Minimum(a, b), Absolute(a), Relu(a)
    Exchange(v, tau, low)    min(v_j, v_tau(j)) where low[j], else max(v_j, v_tau(j))
    Scale(v, c)              c_j v_j

Steps are compared by identity: whoever makes them shares what is equal.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from everyformer.numerics.affine import Affine
from everyformer.targets.box import Box

FunctionName = Literal["pow", "exp", "log", "sin", "cos", "tanh", "logistic"]


@dataclass(frozen=True)
class Function:
    """A function of one number.

    Attributes:
        name: What it is called.
        power: s of t^s for "pow": an integer >= 2 on all numbers, or any s with
            2 s an integer where t > 0 (t >= 0 if s > 0). None for the others.
    """

    name: FunctionName
    power: Fraction | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """One number for each token.

    Attributes:
        origin: The line of the user's program that it computes, for people; "" if none.
    """

    origin: str = field(default="", kw_only=True)

    @property
    def reads(self) -> tuple["Form", ...]:
        """The forms that it reads, in order."""
        return ()


class Form(Affine[Step]):
    """An affine combination of steps."""

    __slots__ = ()

    def by_tokens(self, n: int) -> list[Fraction] | None:
        """Its numbers, if they depend on the position alone."""
        values = [self.offset] * n
        for step, coefficient in self.terms.items():
            if not isinstance(step, Constant):
                return None
            pairs = zip(values, step.values, strict=True)
            values = [v + coefficient * c for v, c in pairs]
        return values


@dataclass(frozen=True, eq=False)
class Input(Step):
    """x[j][channel]."""

    channel: int


@dataclass(frozen=True, eq=False)
class Constant(Step):
    """values[j], for each token j."""

    values: tuple[Fraction, ...]


@dataclass(frozen=True, eq=False)
class OfOne(Step):
    """A step that reads one form."""

    value: Form

    @property
    def reads(self) -> tuple[Form, ...]:
        """Its argument."""
        return (self.value,)


@dataclass(frozen=True, eq=False)
class OfTwo(Step):
    """A step that reads two forms."""

    first: Form
    second: Form

    @property
    def reads(self) -> tuple[Form, ...]:
        """Its arguments."""
        return (self.first, self.second)


@dataclass(frozen=True, eq=False)
class Mean(OfOne):
    """(1/n) sum_k v_k, the same for all tokens."""


@dataclass(frozen=True, eq=False)
class Gather(OfOne):
    """v_tau(j)."""

    tau: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Mix(OfOne):
    """sum_k A_jk v_k; any rationals, of any sign and any row sums."""

    matrix: tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True, eq=False)
class Unary(OfOne):
    """fn(v_j)."""

    function: Function


@dataclass(frozen=True, eq=False)
class Product(OfTwo):
    """a_j b_j."""


@dataclass(frozen=True, eq=False)
class Normalised:
    """All c_i / sqrt(mean of c^2 + delta) of a token; they share squares and root.

    Attributes:
        parts: c_1, .., c_m.
        delta: A number > 0.
    """

    parts: tuple[Form, ...]
    delta: Fraction


@dataclass(frozen=True, eq=False)
class Normalise(Step):
    """c_index / sqrt(mean of c^2 + delta)."""

    group: Normalised
    index: int

    @property
    def reads(self) -> tuple[Form, ...]:
        """All parts."""
        return self.group.parts


@dataclass(frozen=True, eq=False)
class OfScores(Step):
    """A step with the weights e^(q_j . k_k), j and k tokens of the sequence."""

    queries: tuple[Form, ...]
    keys: tuple[Form, ...]
    value: Form

    @property
    def reads(self) -> tuple[Form, ...]:
        """Queries, keys, value."""
        return (*self.queries, *self.keys, self.value)


@dataclass(frozen=True, eq=False)
class Attend(OfScores):
    """sum_k softmax_k(q_j . k_k) v_k over the n tokens of the sequence.

    Attributes:
        everyone: Whether f has tokens with weights that are 0 in float64 (a mask of -1e9).
        faint: The number that f has in place of the scores of such tokens, or None.
    """

    everyone: bool = False
    faint: Fraction | None = None


@dataclass(frozen=True, eq=False)
class ExponentialSum(OfScores):
    """sum_k e^(q_j . k_k) v_k over the n tokens of the sequence."""


@dataclass(frozen=True, eq=False)
class Maximum(OfTwo):
    """max(a_j, b_j)."""


@dataclass(frozen=True, eq=False)
class Minimum(OfTwo):
    """min(a_j, b_j)."""


@dataclass(frozen=True, eq=False)
class Absolute(OfOne):
    """|v_j|."""


@dataclass(frozen=True, eq=False)
class Relu(OfOne):
    """max(v_j, 0)."""


@dataclass(frozen=True, eq=False)
class Exchange(OfOne):
    """Compare with a partner: the lower of both where low[j], else the higher.

    Attributes:
        tau: The partner of each token, tau(tau(j)) = j; j itself where it idles.
        low: Whether token j keeps the lower value.
    """

    tau: tuple[int, ...]
    low: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Scale(OfOne):
    """c_j v_j."""

    factors: tuple[Fraction, ...]


@dataclass(frozen=True)
class Sorted:
    """Exchanges that sort n numbers, as f does in some lines.

    Attributes:
        rounds: The value after each round of exchanges.
        lines: The lines of f in which its own sort ends.
    """

    rounds: tuple[Form, ...]
    lines: tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """A function of sequences, in registers by tokens.

    Attributes:
        seq_len: n.
        box: The domain, an interval for each of d coordinates.
        outputs: The d coordinates of the result.
        sorts: What is known to be a sort.
    """

    seq_len: int
    box: Box
    outputs: tuple[Form, ...]
    sorts: tuple[Sorted, ...] = ()

    def steps(self) -> list[Step]:
        """All steps that the outputs need, each after what it reads."""
        found: dict[Step, None] = {}
        waiting = [step for form in reversed(self.outputs) for step in form]
        while waiting:
            step = waiting[-1]
            missing = [s for form in step.reads for s in form if s not in found]
            if missing and step not in found:
                waiting += missing
                continue
            waiting.pop()
            found.setdefault(step)
        return list(found)
