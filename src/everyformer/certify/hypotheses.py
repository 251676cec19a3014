"""What a proof takes for granted, as values that are made where they are used.

A bound holds under its hypotheses. The prover hands them back with the bound; nothing about
them is read from a file. Some of them are declarations: a claim that rests on one of those
is called CONDITIONAL.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal

Claim = Literal["real", "float64"]
BOTH: tuple[Claim, ...] = ("real", "float64")


def claims_among(names: Any) -> tuple[Claim, ...]:
    """The claims that a file names."""
    found: list[Claim] = [claim for claim in BOTH if claim in names]
    return tuple(found)


class Kind(StrEnum):
    """What is taken for granted."""

    MODULUS = "declared modulus"
    EQUIVARIANCE = "declared equivariance"
    SUPPORT = "declared support"
    ATTENTION = "declared attention"
    EXPORT = "operations as exported"
    VALUES = "values as computed"
    FLOAT64 = "float64 arithmetic"
    EXP = "exp accuracy"


DECLARED = frozenset({Kind.MODULUS, Kind.EQUIVARIANCE, Kind.SUPPORT, Kind.ATTENTION})


@dataclass(frozen=True)
class Hypothesis:
    """Something that a bound rests on, and that nobody proved.

    Attributes:
        kind: What sort of thing.
        text: The statement itself.
        claims: Which of the claims rest on it.

    Example:
        >>> print(modulus(Fraction(1, 8), Fraction(1, 16), lipschitz=Fraction(2)))
        declared, not proved: max|f(X) - f(Y)| <= 2 max|X - Y|
    """

    kind: Kind
    text: str
    claims: tuple[Claim, ...] = BOTH

    @property
    def declared(self) -> bool:
        """Whether somebody declared it of f."""
        return self.kind in DECLARED

    def __str__(self) -> str:
        """The statement; a declaration is called one."""
        return f"declared, not proved: {self.text}" if self.declared else self.text

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"kind": str(self.kind), "claims": list(self.claims), "text": self.text}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Hypothesis":
        """The inverse of `to_json`.

        Raises:
            ValueError: If there is no such kind or claim.
        """
        kind, text = Kind(values["kind"]), str(values["text"])
        return cls(kind, text, claims_among(values["claims"]))


FLOAT64 = Hypothesis(
    Kind.FLOAT64,
    "float64 runs: IEEE, round to nearest, no fast-math, no flush to zero that matters; "
    "softmax subtracts the maximum, exp(0) = 1, exp(t) = 0 for t < -760; no overflow on "
    "the ramps",
    ("float64",),
)
"""What every bound on float64 runs takes for granted."""

EXP = Hypothesis(Kind.EXP, "float64 runs: exp within 4 ulp", ("float64",))
"""And that of a softmax which is not a maximum."""

EQUIVARIANCE = Hypothesis(Kind.EQUIVARIANCE, "f is permutation equivariant")
"""Where one representative of each orbit is examined, and f has no expression."""

SUPPORT = Hypothesis(Kind.SUPPORT, "f is 0 outside the box")
"""Where the distance is over all of R^(n x d), and the expression of f does not show it."""

VALUES = Hypothesis(
    Kind.VALUES, "f at the centres of the cells is what float64 computed for it"
)
"""Where f is known at centres, and by a declaration between them."""


def modulus(
    omega: Fraction, radius: Fraction, *, lipschitz: Fraction | None = None
) -> Hypothesis:
    """max|f(X) - f(Y)| <= omega wherever max|X - Y| <= radius, or a Lipschitz constant.

    Long numbers are rounded so that what is printed says no less than what is used.

    Args:
        omega: The bound.
        radius: The distance up to which it holds.
        lipschitz: The constant, where that is what the proof uses.
    """
    if lipschitz is not None:
        text = f"max|f(X) - f(Y)| <= {_short(lipschitz, ROUND_FLOOR)} max|X - Y|"
    else:
        near, far = _short(omega, ROUND_FLOOR), _short(radius, ROUND_CEILING)
        text = f"max|f(X) - f(Y)| <= {near} for max|X - Y| <= {far}"
    return Hypothesis(Kind.MODULUS, text)


def conditions(hypotheses: Iterable[Hypothesis]) -> tuple[str, ...]:
    """The declarations among hypotheses: what a claim is conditional on."""
    return tuple(one.text for one in hypotheses if one.declared)


def headline(verdict: str, claim: str, hypotheses: Iterable[Hypothesis] = ()) -> str:
    """The first line of a report; whoever reads no further has seen the declarations.

    Example:
        >>> headline("PROVED", "d_2(f, g) <= 0.2", [EQUIVARIANCE, EXP])
        'PROVED, CONDITIONAL on the declared equivariance of f: d_2(f, g) <= 0.2'
    """
    short = {
        Kind.EQUIVARIANCE: "equivariance of f",
        Kind.SUPPORT: "support of f",
        Kind.ATTENTION: "attention of the witness",
    }
    listed = " and ".join(
        short.get(one.kind, one.text) for one in hypotheses if one.declared
    )
    given = f", CONDITIONAL on the declared {listed}" if listed else ""
    return f"{verdict}{given}: {claim}"


def _short(value: Fraction, rounding: str) -> str:
    """A number: exactly where that is short, else to six digits, rounded as told."""
    context = Context(prec=12, rounding=rounding)
    decimal = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    if Fraction(decimal) == value:
        return f"{decimal.normalize():g}"
    if value.numerator.bit_length() + value.denominator.bit_length() <= 32:
        return str(value)
    context.prec = 6
    return f"{context.plus(decimal):g}"
