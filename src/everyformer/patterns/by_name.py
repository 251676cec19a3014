"""Patterns by the names of the command line."""

import inspect
from collections.abc import Callable
from typing import Any

from everyformer.errors import PatternError
from everyformer.patterns import generators
from everyformer.patterns.pattern import Pattern

GENERATORS: dict[str, Callable[..., Pattern]] = {
    "dense": generators.dense,
    "causal": generators.causal,
    "strided": generators.strided,
    "fixed": generators.fixed,
    "star": generators.star,
    "star-first": generators.star_first,
    "bare-star": generators.bare_star,
    "window": generators.window,
    "window-global": generators.window_global,
    "bigbird": generators.big_bird,
    "bigbird-blocks": generators.big_bird_blocks,
    "ring": generators.ring,
    "log-sparse": generators.log_sparse,
    "dilated": generators.dilated,
    "axial": generators.axial,
    "block-local": generators.block_local,
    "random": generators.random,
}


def by_name(name: str, **parameters: Any) -> Pattern:
    """The pattern that a name and its parameters mean.

    Raises:
        PatternError: If there is no such pattern, or a parameter is missing or unknown.

    Example:
        >>> print(by_name("strided", n=16, width=4))
        strided: n = 16, p = 2, connections 74 / 64, sparsity 71.09 % / 75.00 %
    """
    if name not in GENERATORS:
        msg = f"There is no pattern {name!r}. Choose one of {', '.join(GENERATORS)}."
        raise PatternError(msg)
    taken = inspect.signature(GENERATORS[name]).parameters
    unknown = [key for key in parameters if key not in taken]
    missing = [
        key
        for key, parameter in taken.items()
        if parameter.default is parameter.empty and key not in parameters
    ]
    if unknown or missing:
        wrong = [f"no parameter {key}" for key in unknown]
        wrong += [f"{key} is missing" for key in missing]
        msg = f"The pattern {name}: {', '.join(wrong)}."
        made = f"It is made from {parameters_of(name)}"
        raise PatternError(f"{msg} {made}; in the shell: -n N --with KEY=VALUE.")
    return GENERATORS[name](**parameters)


def parameters_of(name: str) -> str:
    """The parameters of a pattern, with their defaults."""
    taken = inspect.signature(GENERATORS[name]).parameters.values()
    return ", ".join(
        key.name if key.default is key.empty else f"{key.name}={key.default}"
        for key in taken
    )
