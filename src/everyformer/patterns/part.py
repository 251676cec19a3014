"""One pattern A^l: for every token, the tokens it attends to.

A part holds its parameters alone, so that n = 32,768 costs nothing until rows are asked
for, and a kernel can match on its kind. Tokens are 0-based here and 1-based in everything
printed, as in the paper (Yun et al. 2020b, Section 3).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from operator import index
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Int32

from everyformer.errors import PatternError
from everyformer.numerics.limits import shown
from everyformer.patterns.rows import Rows

LARGEST = 2**31
"""Tokens are numbered by int32."""

MOST_MASK_ENTRIES = 2**28
"""Entries of a boolean mask that is still made: 256 MiB."""


def check_whole(what: str, least: int, **sizes: int) -> None:
    """Refuse sizes that are not whole numbers, smaller than `least`, or beyond int32.

    Raises:
        PatternError: With all of them.
    """
    wrong = [
        f"{name}={shown(size)}"
        for name, size in sizes.items()
        if isinstance(size, bool)
        or not isinstance(size, int | np.integer)
        or not least <= size < LARGEST
    ]
    if wrong:
        msg = f"{what} with {', '.join(wrong)}: whole numbers"
        raise PatternError(f"{msg} of at least {least} and below 2^31 are needed.")


def whole_numbers(what: str, tokens: Iterable[Any]) -> tuple[int, ...]:
    """Numbers of tokens, of any kind of whole number, as Python's.

    Raises:
        PatternError: If one is not a whole number: 0.5 is not rounded in silence.
    """
    if not isinstance(tokens, Iterable):
        msg = f"{what} is {shown(tokens)}: several tokens are needed, such as (0, 3)."
        raise PatternError(msg)
    given = tuple(tokens)
    try:
        return tuple(index(token) for token in given)
    except TypeError as error:
        some = ", ".join(repr(token) for token in given[:8]) + ", .." * (len(given) > 8)
        msg = f"{what} is ({some}): tokens are numbered by whole numbers (int)."
        raise PatternError(msg) from error


def check_tokens(what: str, n: int, tokens: Iterable[int]) -> None:
    """Refuse token numbers outside 0..n-1.

    Raises:
        PatternError: With the first of them.
    """
    for token in tokens:
        if not 0 <= token < n:
            msg = (
                f"{what} names token {token} (0-based), but with n={n} the tokens are "
                f"0..{n - 1} (0-based). Correct it, or give a larger n."
            )
            raise PatternError(msg)


@dataclass(frozen=True)
class Part(ABC):
    """The sets A_k of one pattern.

    Attributes:
        n: Number of tokens.
    """

    n: int
    least: ClassVar[dict[str, int]] = {}
    """The least values of the other sizes."""

    kinds: ClassVar[dict[str, type["Part"]]] = {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Remember the kind, to read parts from JSON."""
        super().__init_subclass__(**arguments)
        Part.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            PatternError: If there can be no such pattern.
        """
        least = {"n": 1, **self.least}
        for smallest in set(least.values()):
            sizes = {name: getattr(self, name) for name in least if least[name] == smallest}
            check_whole(self.kind, smallest, **sizes)
            for name, size in sizes.items():  # numpy's whole numbers become Python's
                object.__setattr__(self, name, int(size))

    @property
    def kind(self) -> str:
        """Name of the class."""
        return type(self).__name__

    @abstractmethod
    def _make_rows(self) -> Rows:
        """A_k for every k."""

    @cached_property
    def _rows(self) -> Rows:
        return self._make_rows()

    def rows(self) -> Rows:
        """A_k for every k; made once."""
        return self._rows

    def heard(self, k: int) -> Int32[np.ndarray, " heard"]:
        """A_k: the tokens that token k attends to, 0-based and ascending."""
        check_tokens("heard", self.n, [k])
        return self.rows().row(k)

    @property
    def connections(self) -> int:
        """The sum of all |A_k|."""
        return len(self.rows().indices)

    @property
    def sparsity(self) -> float:
        """1 - connections / n^2."""
        return 1 - self.connections / self.n**2

    @property
    def self_loops(self) -> bool:
        """Whether k is in A_k for every k (Assumption 1.1)."""
        return self.without_self_loop() is None

    def without_self_loop(self) -> int | None:
        """The first token k that is not in A_k, 0-based; None if all are."""
        rows = self.rows()
        looped = np.zeros(self.n, dtype=bool)
        listeners = rows.listeners()
        looped[listeners[listeners == rows.indices]] = True
        return None if looped.all() else int(np.argmin(looped))

    @cached_property
    def is_causal(self) -> bool:
        """Whether no token attends to a later one."""
        rows = self.rows()
        return bool((rows.indices <= rows.listeners()).all())

    def mask(self) -> Bool[np.ndarray, "n n"]:
        """The matrix that is True where token k (row) attends to token j (column).

        Raises:
            PatternError: If it would have more than 2^28 entries.
        """
        if self.n**2 > MOST_MASK_ENTRIES:
            msg = (
                f"{self.kind} with n={self.n}: a mask would have {self.n**2:,} entries, "
                f"more than {MOST_MASK_ENTRIES:,}. rows() has {self.connections:,} entries."
            )
            raise PatternError(msg)
        found = np.zeros((self.n, self.n), dtype=np.bool_)
        found[self.rows().listeners(), self.rows().indices] = True
        return found

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the kind and its parameters, parts among them as their own."""
        return {"kind": self.kind} | {
            field.name: _written(getattr(self, field.name)) for field in fields(self)
        }

    @classmethod
    def arguments_of_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The parameters in a JSON object: lists become tuples again."""
        return {name: _tupled(value) for name, value in data.items()}

    @staticmethod
    def all_from_json(data: object) -> tuple["Part", ...]:
        """The parts that `to_json` wrote, in a list.

        Raises:
            PatternError: If it is no list, or one does not describe a part.
        """
        if not isinstance(data, list):
            msg = f"{str(data)[:80]} is not a list of the parts of a pattern."
            raise PatternError(msg)
        return tuple(Part.from_json(one) for one in data)

    @staticmethod
    def from_json(data: dict[str, Any]) -> "Part":
        """The part that `to_json` wrote.

        Raises:
            PatternError: If it does not describe one.
        """
        given = data if isinstance(data, dict) else {}
        kind = Part.kinds.get(str(given.get("kind")))
        parameters = {name: value for name, value in given.items() if name != "kind"}
        if kind is None or set(parameters) != {field.name for field in fields(kind)}:
            msg = (
                f"{str(data)[:80]} is not a part of a pattern: a kind among "
                f"{', '.join(Part.kinds)} and its parameters are needed."
            )
            raise PatternError(msg)
        return kind(**kind.arguments_of_json(parameters))


def _written(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_written(one) for one in value]
    return value.to_json() if isinstance(value, Part) else value


def _tupled(value: Any) -> Any:
    return tuple(_tupled(one) for one in value) if isinstance(value, list) else value
