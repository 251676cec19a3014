"""What registers hold between two slots, and what a row of weights reads of them.

For all x of the box and all tokens of the sequence a register holds

    its ideal value +- e          in real arithmetic,
    its ideal value +- (e + r)    in a float64 run, sums in any order,

the ideal value being the real function that its term denotes, in [low, high]. On prefix
tokens its size is at most `garbage`; where nothing was written there it is known exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np

from everyformer.certify.compile.rounded import UNDERFLOW, bounded, down, scales_exactly, up
from everyformer.certify.rounding import gamma, lowest_bits, sums_exactly


@runtime_checkable
class Terms(Protocol):
    """What is asked of an algebra of terms; equal terms are the same object."""

    def constant(self, value: Fraction, /) -> Any:
        """A number."""
        ...

    def entry(self, j: int, i: int, /) -> Any:
        """x[j][i]."""
        ...

    def affine(self, terms: Sequence[tuple[Fraction, Any]], offset: Fraction, /) -> Any:
        """The sum of multiples, and a number."""
        ...

    def mul(self, a: Any, b: Any, /) -> Any:
        """a b."""
        ...

    def power(self, a: Any, s: Fraction, /) -> Any:
        """a^s."""
        ...

    def exp(self, a: Any, /) -> Any:
        """e^a."""
        ...

    def abs(self, a: Any, /) -> Any:
        """|a|."""
        ...

    def relu(self, a: Any, /) -> Any:
        """max(a, 0)."""
        ...

    def maximum(self, terms: Sequence[Any], /) -> Any:
        """The largest."""
        ...

    def minimum(self, terms: Sequence[Any], /) -> Any:
        """The smallest."""
        ...

    def softmax_average(self, scores: Sequence[Any], values: Sequence[Any], /) -> Any:
        """sum_k e^(s_k) v_k / sum_k e^(s_k)."""
        ...


@dataclass(frozen=True)
class Value:
    """A number for each token of the sequence.

    Attributes:
        terms: The ideal value, by token.
        low: At most every ideal value.
        high: At least every ideal value.
        e: How far real arithmetic may be from the ideal value.
        r: How much farther a float64 run may be.
    """

    terms: tuple[Any, ...]
    low: Fraction
    high: Fraction
    e: Fraction
    r: Fraction

    @property
    def ideal_size(self) -> Fraction:
        """The largest ideal value, without its sign."""
        return max(abs(self.low), abs(self.high))

    @property
    def size(self) -> Fraction:
        """The largest value of any run, without its sign."""
        return self.ideal_size + self.e + self.r


@dataclass(frozen=True)
class Held(Value):
    """A register.

    Attributes:
        constant: Its numbers on the tokens of the sequence, in every run and for all x,
            where they are known; None after it was written.
        ideal: What those numbers stand for.
        prefix: Its numbers on prefix tokens, in every run and for all x; None if unknown.
        garbage: The largest of them, without its sign, in every run.
    """

    constant: np.ndarray | None
    ideal: tuple[Fraction, ...]
    prefix: np.ndarray | None
    garbage: Fraction

    @property
    def is_empty(self) -> bool:
        """Whether it is exactly 0 on all tokens of the sequence."""
        return self.constant is not None and not self.constant.any()

    def written(self, value: Value, garbage: Fraction) -> "Held":
        """The register with a new value; of prefix tokens only a size is known."""
        known = bounded(garbage, "a register of a prefix token")
        return Held(
            value.terms, value.low, value.high, value.e, value.r, None, (), None, known
        )

    def with_prefix_of(self, before: "Held") -> "Held":
        """The register, unchanged on prefix tokens."""
        return replace(self, prefix=before.prefix, garbage=before.garbage)


@dataclass(frozen=True)
class Row:
    """A row of weights: stored numbers, and the rationals that they stand for.

    Attributes:
        stored: The coefficients that are not 0, by register.
        ideal: What they stand for; the same registers.
        offset: A constant that is added.
        ideal_offset: What it stands for.
    """

    stored: Mapping[int, float]
    ideal: Mapping[int, Fraction]
    offset: float = 0.0
    ideal_offset: Fraction = Fraction(0)

    @property
    def is_zero(self) -> bool:
        """Whether it reads nothing."""
        return not self.stored and self.offset == 0.0

    def without(self, register: int) -> "Row":
        """The row without what it reads of one register."""
        stored = {k: c for k, c in self.stored.items() if k != register}
        ideal = {k: c for k, c in self.ideal.items() if k != register}
        return replace(self, stored=stored, ideal=ideal)

    def times(self, sign: int) -> "Row":
        """The row, or its negative."""
        return Row(
            {k: sign * c for k, c in self.stored.items()},
            {k: sign * c for k, c in self.ideal.items()},
            sign * self.offset,
            sign * self.ideal_offset,
        )


@dataclass(frozen=True)
class Pair:
    """Two registers whose difference stands for a product.

    Attributes:
        minus: The other register.
        product: A quarter of the difference: a b.
    """

    minus: int
    product: Value


@dataclass
class State:
    """All registers between two slots.

    Attributes:
        algebra: Terms.
        held: The registers.
        prefix_len: P.
        pairs: For the first register of a product, the product.
    """

    algebra: Terms
    held: list[Held]
    prefix_len: int
    pairs: dict[int, Pair] = field(default_factory=dict[int, Pair])

    @property
    def seq_len(self) -> int:
        """n."""
        return len(self.held[0].terms)

    def copy(self) -> "State":
        """For the next slot, which reads this one and writes that."""
        return State(self.algebra, list(self.held), self.prefix_len, dict(self.pairs))

    def write(self, register: int, held: Held) -> None:
        """Replace a register; a product that needed what it held is forgotten."""
        self.held[register] = held
        self.pairs = {
            plus: pair
            for plus, pair in self.pairs.items()
            if register not in (plus, pair.minus)
        }

    def form(self, ideal: Mapping[int, Fraction], offset: Fraction = Fraction(0)) -> Value:
        """An affine form with exact coefficients, of the registers of any run.

        Where two registers of a product have opposite coefficients (g, -g), they count as
        4 g a b, with the product's error; the coefficients add up exactly to the form.
        """
        rest, parts = dict(ideal), list[tuple[Fraction, Value]]()
        for plus in ideal:
            pair = self.pairs.get(plus)
            if pair is None or plus not in rest or pair.minus not in rest:
                continue
            if rest[pair.minus] == -rest[plus]:
                parts.append((4 * rest.pop(plus), pair.product))
                del rest[pair.minus]
        fixed, e, r = [offset] * self.seq_len, Fraction(0), Fraction(0)
        for register, c in rest.items():
            held = self.held[register]
            if held.constant is None:
                parts.append((c, held))
                continue
            fixed = [
                sum_ + c * value for sum_, value in zip(fixed, held.ideal, strict=True)
            ]
            e += abs(c) * held.e
        low, high = min(fixed), max(fixed)
        for c, value in parts:
            ends = sorted((c * value.low, c * value.high))
            low, high = low + ends[0], high + ends[1]
            e, r = e + abs(c) * value.e, r + abs(c) * value.r
        terms = tuple(
            self._term([(c, value.terms[j]) for c, value in parts], fixed[j])
            for j in range(self.seq_len)
        )
        return Value(terms, down(low), up(high), up(e), up(r))

    def _term(self, parts: list[tuple[Fraction, Any]], offset: Fraction) -> Any:
        if len(parts) == 1 and parts[0][0] == 1 and offset == 0:
            return parts[0][1]
        return self.algebra.affine(parts, offset)

    def read(self, row: Row) -> Value:
        """What a row reads on the tokens of the sequence: its ideal form, and the errors.

        |stored - ideal| |value| goes to e.
        """
        found = self.form(row.ideal, row.ideal_offset)
        e = found.e + self.misread(row)
        r = found.r + self.rounding(row)
        bounded(found.ideal_size + e + r, "what a row reads")
        return replace(found, e=up(e), r=up(r))

    def misread(self, row: Row) -> Fraction:
        """How far the stored row may be from the ideal one, at the numbers of any run."""
        total = abs(Fraction(row.offset) - row.ideal_offset)
        for register, stored in row.stored.items():
            gap = abs(Fraction(stored) - row.ideal[register])
            total += gap * self.held[register].size
        return up(total)

    def rounding(self, row: Row) -> Fraction:
        """How far float64 may be from the stored row, at the numbers it is given.

        It adds k products and the offset with an error of at most gamma_(k+3) times the
        sum of their sizes, in any order; one product with +-2^k is exact but for underflow.
        """
        if row.offset == 0.0 and len(row.stored) <= 1:
            if not row.stored:
                return Fraction(0)
            (c,) = row.stored.values()
            if scales_exactly(c):
                return UNDERFLOW if abs(c) < 1 else Fraction(0)
        return up(gamma(len(row.stored) + 3) * self.sizes(row) + UNDERFLOW)

    def sizes(self, row: Row) -> Fraction:
        """The sizes of all that a row adds up, in any run, without cancellation."""
        total = abs(Fraction(row.offset))
        for register, c in row.stored.items():
            total += abs(Fraction(c)) * self.held[register].size
        return total

    def on_prefix(self, row: Row) -> Fraction:
        """The largest number that a row reads on a prefix token, in any run."""
        if self.prefix_len == 0:
            return Fraction(0)
        total = abs(Fraction(row.offset))
        for register, c in row.stored.items():
            total += abs(Fraction(c)) * self.held[register].garbage
        slack = 1 + gamma(len(row.stored) + 3)
        return bounded(total * slack + UNDERFLOW, "what a row reads of a prefix token")

    def constants(self, row: Row, *, prefix: bool = False) -> np.ndarray | None:
        """What a row reads, in every run, where it reads constants that add up exactly.

        Args:
            row: The row.
            prefix: On prefix tokens instead of those of the sequence.

        Returns:
            One number for each token; None if that is not known.
        """
        products, lowest = list[np.ndarray](), list[np.ndarray]()
        count = self.prefix_len if prefix else self.seq_len
        if row.offset != 0.0:
            products.append(np.full(count, row.offset))
            lowest.append(lowest_bits(products[-1]))
        for register, c in row.stored.items():
            held = self.held[register]
            known = held.prefix if prefix else held.constant
            if known is None:
                return None
            products.append(known * c)
            lowest.append(
                np.where(known == 0, 1 << 20, lowest_bits(known) + lowest_bits(np.array(c)))
            )
        if not products:
            return np.zeros(count)
        terms = np.stack(products, axis=-1)
        exact = sums_exactly(terms, np.stack(lowest, axis=-1))
        return terms.sum(axis=-1) if bool(exact.all()) else None
