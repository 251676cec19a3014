"""Numbers and tokens as a reader likes them."""

from fractions import Fraction
from typing import Any

import numpy as np

SHOWN_TOKENS = 6
"""More tokens, and more coordinates of a token, are cut short."""

CLOSE = 1e-9
"""Two numbers are told as equal if they are this close, relatively."""


def number(value: Any) -> str:
    """A number in full where that is short, else to six digits.

    Example:
        >>> number(210427917.0625), number(0.46354166666666663), number(Fraction(21, 2))
        ('210427917.0625', '0.463542', '21/2')
    """
    exact = isinstance(value, int | Fraction)
    full = str(value) if exact else repr(float(value)).removesuffix(".0")
    return full if len(full) <= 16 else f"{float(value):.6g}"


def signed(value: Any) -> str:
    """A number that may stand after a minus."""
    return f"({number(value)})" if value < 0 else number(value)


def vector(values: np.ndarray) -> str:
    """One number, or several in brackets; many are cut short.

    Example:
        >>> vector(np.array([0.5])), vector(np.array([0.5, 1.0]))
        ('0.5', '(0.5, 1)')
    """
    texts = [number(value) for value in values[:SHOWN_TOKENS]]
    texts += ["..."] * (len(values) > SHOWN_TOKENS)
    return texts[0] if len(values) == 1 else f"({', '.join(texts)})"


def tokens(sequence: np.ndarray) -> list[str]:
    """The tokens of one sequence, (n, d), each as text; many are cut short."""
    texts = [vector(token) for token in sequence[:SHOWN_TOKENS]]
    return texts + ["..."] * (len(sequence) > SHOWN_TOKENS)


def agree(one: Any, other: Any) -> bool:
    """Whether two arrays, or numbers, are equal up to rounding."""
    first, second = (np.asarray(a, dtype=np.float64) for a in (one, other))
    if first.shape != second.shape:
        return False
    size = max(1.0, float(np.abs(second).max(initial=0.0)))
    return bool((np.abs(first - second) <= CLOSE * size).all())
