"""The function to approximate, and what is known about it."""

import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np

from everyformer.errors import TargetError, refuse
from everyformer.numerics.expression import Expression
from everyformer.numerics.limits import shown
from everyformer.targets.box import Box, Grid
from everyformer.targets.failures import SHAPES, advice, described
from everyformer.targets.region import Region
from everyformer.targets.trace import trace as record

EVALUATION_CHUNK = 1 << 16
"""Sequences handed to the user's function in one call."""

MAX_SIZE = 2**20
"""The most tokens, and the most numbers in one, that a file of a network may name."""


@dataclass(frozen=True, init=False)
class Target:
    """A sequence-to-sequence function f on a box, with what is declared about it.

    Attributes:
        function: f; takes an array (batch, n, d) and returns one of the same shape.
        seq_len: n, the number of tokens.
        d_model: d, the width of a token.
        domain: The box, an interval for each coordinate, the same for every token.
        region: Where in the box f is to be approximated; None for all of it.
        everywhere: Whether f is 0 outside the box, and distances are over all of R^(n x d).
        equivariant: True when f(PX) = P f(X) for every permutation P of the tokens.
        lipschitz: L with max|f(X) - f(Y)| <= L max|X - Y|, if declared.
        name: Shown in tables and files.
        trace: Whether f may be known by its numpy operations.

    Example:
        >>> target = Target(lambda x: x[..., ::-1, :], seq_len=2, d_model=1, lipschitz=1)
        >>> target(np.array([[[0.25], [0.75]]])).tolist()
        [[[0.75], [0.25]]]
        >>> target.modulus_of_continuity(0.125)
        Fraction(1, 8)
        >>> target.expression.to_json()["nodes"]
        [['x', 0, 0], ['x', 1, 0]]
    """

    function: Callable[[np.ndarray], np.ndarray]
    seq_len: int
    d_model: int
    domain: Box
    region: Region | None
    everywhere: bool
    equivariant: bool
    lipschitz: Fraction | None
    modulus: Callable[[float], float] | None
    name: str
    trace: bool

    def __init__(
        self,
        function: Callable[[np.ndarray], np.ndarray],
        seq_len: int,
        d_model: int,
        *,
        lipschitz: int | float | Fraction | None = None,
        modulus: Callable[[float], float] | None = None,
        equivariant: bool = False,
        domain: Sequence[Any] | None = None,
        region: Sequence[Any] | None = None,
        everywhere: bool = False,
        name: str | None = None,
        trace: bool = True,
    ) -> None:
        """Declare a target. All that is wrong is reported at once.

        Args:
            function: f, vectorised over the first axis: (batch, n, d) -> (batch, n, d).
            seq_len: n, the number of tokens.
            d_model: d, the width of a token.
            lipschitz: A number L with |f(X) - f(Y)| <= L |X - Y| in the maximum norm.
            modulus: Instead of `lipschitz`: omega(r) >= max|f(X) - f(Y)| over all X, Y in
                the domain with max|X - Y| <= r.
            equivariant: Declare f permutation equivariant (Theorem 2 instead of 3).
            domain: One (low, high) for each coordinate, or a single one for all; or a row
                of d pairs for each token, which is a region of one box. [0, 1] by default,
                or the least box around the region.
            region: A compact domain that is not one box: a list of boxes, each with a row
                of d pairs (low, high) for every token. Distances are over the region;
                outside it f is not evaluated, and the network is free.
            everywhere: Declare that f is 0 outside the box (compact support): distances are
                over all of R^(n x d).
            name: A name for tables; the function's own by default.
            trace: Whether f may be known by its numpy operations; otherwise by what is
                declared alone.

        Raises:
            TargetError: If a size, the box or the declaration makes no sense.
        """
        wrong: list[str] = []
        for label, size in (("seq_len", seq_len), ("d_model", d_model)):
            if type(size) is bool or not isinstance(size, int) or size < 1:
                wrong.append(f"{label}={shown(size)} is not an integer >= 1")
            elif size > MAX_SIZE:
                wrong.append(f"{label}={shown(size)} is more than {MAX_SIZE:,}")
        if not callable(function):
            wrong.append(f"function={function!r} cannot be called")
        if lipschitz is not None and modulus is not None:
            wrong.append("lipschitz and modulus are both given; one of them is enough")
        if lipschitz is not None and not _is_size(lipschitz):
            wrong.append(f"lipschitz={shown(lipschitz)} is not a finite number >= 0")
        if modulus is not None and not callable(modulus):
            wrong.append(f"modulus={modulus!r} cannot be called")
        given = domain if isinstance(domain, tuple | list) else ()
        if len(given) == 2 and all(isinstance(end, Real) for end in given):
            wrong.append(f"domain={shown(domain)} is one interval: write [{shown(domain)}]")
        refuse("Target cannot be made", wrong, TargetError)
        box, parts = _read_domain(domain, region, seq_len, d_model)
        if everywhere and parts is not None:
            msg = (
                "everywhere=True counts all of R^(n x d), a region or intervals for each "
                "token only a part of it. Give one of the two."
            )
            raise TargetError(msg)
        values: dict[str, Any] = {
            "function": function,
            "seq_len": seq_len,
            "d_model": d_model,
            "domain": box,
            "region": parts,
            "everywhere": bool(everywhere),
            "equivariant": bool(equivariant),
            "lipschitz": None if lipschitz is None else Fraction(lipschitz),
            "modulus": modulus,
            "name": name or getattr(function, "__name__", type(function).__name__),
            "trace": bool(trace),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """f, evaluated in float64 and checked.

        Args:
            x: Shape (*batch, n, d).

        Raises:
            TargetError: If f fails, changes the shape, or returns NaN or infinity.
        """
        tokens = np.asarray(x, dtype=np.float64)
        batch = tokens.reshape(-1, self.seq_len, self.d_model)
        values = np.empty_like(batch)
        for start in range(0, len(batch), EVALUATION_CHUNK):
            piece = batch[start : start + EVALUATION_CHUNK]
            values[start : start + EVALUATION_CHUNK] = self._evaluate(piece)
        return values.reshape(tokens.shape)

    def check(self) -> None:
        """See that f works on arrays, and on each sequence of a batch by itself.

        Raises:
            TargetError: If it does not.
        """
        rng = np.random.default_rng(0)
        low, high = np.asarray(self.domain.lows), np.asarray(self.domain.highs)
        x = low + (high - low) * rng.random((3, self.seq_len, self.d_model))
        if self.region is not None:
            x = self.region.sample(rng, 3)
        together, alone = self(x), np.concatenate([self(x[i : i + 1]) for i in range(3)])
        if not np.allclose(together, alone, rtol=1e-6, atol=1e-9):
            msg = (
                f"{self.name} gives another result for a sequence when others stand beside "
                f"it in the batch, or at another time. {SHAPES} Write x[..., ::-1, :] for "
                "x[::-1], x.sum(-2, keepdims=True) for x.sum(0), and use no random numbers."
            )
            raise TargetError(msg)

    def _evaluate(self, batch: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):  # np.where computes what it does not choose
                values = np.asarray(self.function(batch.copy()))
        except Exception as error:
            msg = (
                f"{self.name} failed on an array of shape {batch.shape}: "
                f"{described(error)}. {advice(error)}"
            )
            raise TargetError(msg) from error
        if values.shape == () and values.dtype == object and values.item() is None:
            raise TargetError(f"{self.name} returned None. Is a `return` missing?")
        if values.shape != batch.shape:
            msg = (
                f"{self.name} returned shape {values.shape} for input of shape "
                f"{batch.shape}. A target maps (batch, n, d) to (batch, n, d); reduce over "
                "tokens with axis=-2 and keepdims=True, over coordinates with axis=-1."
            )
            raise TargetError(msg)
        if values.dtype.kind not in "fiub":
            msg = f"{self.name} returned dtype {values.dtype}; it must return real numbers."
            raise TargetError(msg)
        values = values.astype(np.float64)
        finite = np.isfinite(values).all(axis=(-2, -1))
        if not finite.all():
            index = int(np.argmin(finite))
            msg = (
                f"{self.name} returned {values[index].tolist()} at "
                f"x = {batch[index].tolist()}. A continuous function on a box is finite "
                "there; restrict the domain or repair the function."
            )
            raise TargetError(msg)
        return values

    @property
    def on_box(self) -> bool:
        """Whether distances are over the box, and over nothing else."""
        return self.region is None and not self.everywhere

    @property
    def expression(self) -> Expression | None:
        """f as an expression, traced when first asked for; None if that is impossible."""
        return self._traced[0]

    @property
    def untraceable(self) -> str | None:
        """Why there is no expression, or None when there is one."""
        return self._traced[1]

    def untraced(self) -> "Target":
        """The same function, known by what is declared of it alone."""
        known = copy(self)
        object.__setattr__(known, "trace", False)
        known.__dict__.pop("_traced", None)
        return known

    @cached_property
    def _traced(self) -> tuple[Expression | None, str | None]:
        box, region = self.domain, self.region
        if not self.trace:
            return None, "trace=False (--no-trace) forbids it."
        ends = [(box.lows, box.highs)] if region is None else zip(*region.ends, strict=True)
        n, d = self.seq_len, self.d_model
        try:
            found = [record(self.function, n, d, *sides) for sides in ends]
        except Exception as error:  # whatever the user's function does
            return None, str(error)
        return found[0], None  # one program, compared with f on every part

    def centres(self, grid: Grid, columns: np.ndarray) -> np.ndarray:
        """A point for each cell: its centre, or a point of the region."""
        if self.region is None:
            return grid.centres(columns)
        return self.region.centres(grid, columns)

    def modulus_of_continuity(self, radius: int | float | Fraction) -> Fraction | None:
        """omega(radius) as declared, or None when nothing is declared.

        Raises:
            TargetError: If the declared modulus returns something impossible.
        """
        if self.lipschitz is not None:
            return self.lipschitz * Fraction(radius)
        if self.modulus is None:
            return None
        try:
            value = self.modulus(float(radius))
        except Exception as error:
            msg = (
                f"The modulus of {self.name} failed at radius {float(radius):g}: "
                f"{type(error).__name__}: {error}. It must return a number for every r > 0."
            )
            raise TargetError(msg) from error
        if not _is_size(value):
            msg = (
                f"The modulus of {self.name} returned {shown(value)} at radius "
                f"{float(radius):g}. It must be a finite number >= 0."
            )
            raise TargetError(msg)
        return Fraction(float(value))


def _read_domain(
    domain: Sequence[Any] | None, region: Sequence[Any] | None, n: int, d: int
) -> tuple[Box, Region | None]:
    """The box of a token, and the region in it.

    Raises:
        TargetError: If they make no sense, or the region is not inside the box.
    """
    if domain is not None and _is_per_token(domain):
        if region is not None:
            msg = (
                "domain has intervals for each token, which is a region of one box, and "
                "region is given as well. Give one of the two."
            )
            raise TargetError(msg)
        domain, region = None, [domain]
    if region is None:
        return Box.per_coordinate(((0.0, 1.0),) if domain is None else domain, d), None
    parts = Region.of(region, n, d)
    box = parts.hull if domain is None else Box.per_coordinate(domain, d)
    parts.check_inside(box)
    return box, parts


def _is_per_token(domain: Sequence[Any]) -> bool:
    """Whether a domain has rows of pairs instead of pairs."""
    try:
        return all(len(pair) == 2 for row in domain for pair in row)
    except TypeError:
        return False


def _is_size(value: object) -> bool:
    """Whether a value is a number from 0 to the largest of float64; nan is not."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return bool(0 <= value <= sys.float_info.max)  # pyright: ignore[reportOperatorIssue]
