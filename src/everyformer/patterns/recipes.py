"""Patterns as functions of n, for sequences in buckets: a name and all settings but n."""

import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from everyformer.errors import PatternError
from everyformer.numerics.limits import shown
from everyformer.patterns.by_name import GENERATORS, by_name, parameters_of
from everyformer.patterns.part import check_whole
from everyformer.patterns.pattern import Pattern

MOST_KEPT = 256
"""Patterns of all recipes together that are kept."""


@dataclass(frozen=True)
class Recipe:
    """What makes a pattern for every number of tokens: `recipe(n)`, kept for each n.

    Two with the same settings are equal and give the same objects. `recipe` makes one.

    Attributes:
        name: Of the pattern, as `by_name` knows it.
        parameters: Names and values but n, in order.
        causal: Whether the future is left out.
        max_len: If given, the pattern of n tokens is the first n of that of max_len ones,
            and n is at most max_len. A causal token then hears the same tokens at every
            length, as decoding with a cache of `max_len` tokens needs it, also where the
            pattern is random or ends with a relay. Without it the pattern is made anew for
            each n, of which there is no largest one.
        multiple_of: Numbers of tokens that are not multiples of it are refused.
    """

    name: str
    parameters: tuple[tuple[str, Any], ...]
    causal: bool = False
    max_len: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        """Check everything that can be checked without n.

        Raises:
            PatternError: With all reasons.
        """
        if not isinstance(self.name, str) or self.name not in GENERATORS:
            known = ", ".join(GENERATORS)
            raise PatternError(f"There is no pattern {self.name!r}. Choose one of {known}.")
        check_whole("A recipe", 1, multiple_of=self.multiple_of)
        if self.max_len is not None:
            check_whole("A recipe", 1, max_len=self.max_len)
        taken = inspect.signature(GENERATORS[self.name]).parameters
        own = self._of_length()
        wrong = [
            f"{name} follows from the number of tokens, leave it out"
            if name in own
            else f"no parameter {name}"
            for name, _ in self.parameters
            if name in own or name not in taken
        ]
        given = {*own, *(name for name, _ in self.parameters)}
        wrong += [
            f"{name} is missing"
            for name, parameter in taken.items()
            if parameter.default is parameter.empty and name not in given
        ]
        settings = tuple((name, _fixed(value)) for name, value in self.parameters)
        object.__setattr__(self, "parameters", settings)
        wrong += [
            f"{name}={shown(value)} can be changed, and a recipe not; give numbers, in a "
            "tuple where there are several"
            for name, value in settings
            if not isinstance(value, Hashable)
        ]
        if wrong:
            msg = f"A recipe for the pattern {self.name}: {', '.join(wrong)}."
            raise PatternError(f"{msg} It is made from {parameters_of(self.name)}.")
        if self.name == "axial":
            check_whole("axial", 1, columns=dict(settings)["columns"])
        if self.max_len is not None:
            self._check_multiple(self.max_len)

    def __call__(self, n: int) -> Pattern:
        """The pattern for n tokens.

        Raises:
            PatternError: If n is beyond max_len or not a multiple, or the
                name asks for something else of n.
        """
        check_whole(f"A recipe for {self.name}", 1, n=n)
        if self.max_len is not None and n > self.max_len:
            msg = (
                f"There are n={n} tokens, but this recipe for {self.name} has max_len="
                f"{self.max_len}. Give shorter sequences, or a larger max_len."
            )
            raise PatternError(msg)
        self._check_multiple(n)
        return _made(self, n)

    def causal_part(self) -> "Recipe":
        """The same without the future."""
        return Recipe(self.name, self.parameters, True, self.max_len, self.multiple_of)

    def __str__(self) -> str:
        """The call that makes it, without `recipe`."""
        given = [f"{name}={value}" for name, value in self.parameters]
        given += ["causal"] * self.causal
        given += [] if self.max_len is None else [f"max_len={self.max_len}"]
        return f"{self.name} ({', '.join(given)})" if given else self.name

    def _of_length(self) -> tuple[str, ...]:
        return ("rows",) if self.name == "axial" else ("n",)

    def _check_multiple(self, n: int) -> None:
        multiple = self.multiple_of
        if self.name == "axial":
            multiple *= dict(self.parameters)["columns"]
        if n % multiple:
            below, above = n // multiple * multiple, -(-n // multiple) * multiple
            fitting = f"{below} or {above}" if below else f"{above}"
            msg = (
                f"n={n} tokens are not a multiple of {multiple}, as this recipe for "
                f"{self.name} needs it. Pad to {fitting} and hide the padding."
            )
            raise PatternError(msg)


def recipe(
    name: str,
    *,
    causal: bool = False,
    max_len: int | None = None,
    multiple_of: int = 1,
    **parameters: Any,
) -> Recipe:
    """A pattern for every number of tokens, for `layers.SparseAttention(.., pattern=..)`.

    Args:
        name: As `by_name` knows it: "strided", "fixed", "star", "star-first", ..
        causal: Whether the future is left out.
        max_len: If given, shorter sequences use the first tokens of this pattern, longer
            ones are refused; without it the pattern is made anew for each length.
        multiple_of: Other numbers of tokens are refused.
        **parameters: Of the pattern, but n.

    Raises:
        PatternError: If there is no such pattern, or a parameter is missing or unknown.

    Example:
        >>> made = recipe("strided", width=16, causal=True)
        >>> made(256) is made(256), made(64).connections
        (True, (540, 160))
        >>> drawn = recipe("random", keys=33, max_len=256, causal=True)
        >>> bool((drawn(256).parts[0].mask()[:64, :64] == drawn(64).parts[0].mask()).all())
        True
    """
    return Recipe(name, tuple(parameters.items()), causal, max_len, multiple_of)


def _fixed(value: Any) -> Any:
    """Several numbers as a tuple, which is the same for ever."""
    return tuple(value) if isinstance(value, list) else value


@lru_cache(maxsize=MOST_KEPT)
def _made(made: Recipe, n: int) -> Pattern:
    if made.max_len is not None and n < made.max_len:
        return _made(made, made.max_len).first(n)
    given = dict(made.parameters)
    length = {"rows": n // given["columns"]} if made.name == "axial" else {"n": n}
    pattern = by_name(made.name, **length, **given)
    return pattern.causal_part() if made.causal else pattern
