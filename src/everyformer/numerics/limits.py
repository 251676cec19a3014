"""Numbers that users set: counts, and limits in bytes or seconds."""

import sys
from decimal import MAX_EMAX, Decimal, localcontext
from fractions import Fraction
from numbers import Integral, Real
from typing import Any

import numpy as np

from everyformer.errors import InputError

LONG = 10**18
"""Counts from here on are told as powers of ten."""


def is_number(value: object) -> bool:
    """Whether this is a real number of Python or numpy; texts and truth values are not."""
    return isinstance(value, Real) and not isinstance(value, bool | np.bool_)


def is_positive(value: object) -> bool:
    """Whether this is a number > 0 up to the largest of float64.

    Example:
        >>> is_positive(0.5), is_positive(np.float32(0.5)), is_positive(True)
        (True, True, False)
        >>> is_positive(float("nan")), is_positive(10**400)
        (False, False)
    """
    number: Any = value.item() if isinstance(value, np.generic) else value
    return is_number(number) and bool(0 < number <= sys.float_info.max)


def end_of_interval(value: Any) -> float:
    """An end of an interval as float64 has it; never a text, an array or a truth value.

    Raises:
        TypeError: If it is not a real number.
        OverflowError: If it is beyond float64.

    Example:
        >>> end_of_interval(np.int8(2)), end_of_interval(0.5)
        (2.0, 0.5)
        >>> end_of_interval(True)
        Traceback (most recent call last):
        ...
        TypeError: True is not a number
    """
    if not is_number(value):
        msg = f"{shown(value)} is not a number"
        raise TypeError(msg)
    return float(value)


def check_limit(name: str, value: object, unit: str, *, zero: bool = False) -> None:
    """Refuse what cannot be a limit; NaN would be one that nothing exceeds.

    Args:
        name: What the user calls it.
        value: What was given.
        unit: What it counts, "bytes" or "seconds".
        zero: Whether 0 is one.

    Raises:
        InputError: If it is not a number, negative or not finite.

    Example:
        >>> check_limit("max_memory", 2**30, "bytes")
        >>> check_limit("max_memory", "1", "bytes")
        Traceback (most recent call last):
        ...
        everyformer.errors.InputError: max_memory='1' is not a positive, finite number of
        bytes. Give one such as max_memory=1000000000.
    """
    number = value.item() if isinstance(value, np.generic) else value
    if isinstance(number, int | float) and is_positive(number):
        return
    if zero and is_number(number) and number == 0:
        return
    kind = "non-negative" if zero else "positive"
    example = 10**9 if unit == "bytes" else 60
    msg = f"{name}={shown(value)} is not a {kind}, finite number of {unit}. Give one"
    raise InputError(f"{msg} such as {name}={example}.")


def check_integer(name: str, value: object, least: int) -> int:
    """An integer of Python or numpy; never a text, a fraction or a truth value.

    Args:
        name: What the user calls it.
        value: What was given.
        least: The smallest that makes sense.

    Raises:
        InputError: If it is anything else, or too small.

    Example:
        >>> check_integer("workers", np.int8(2), 1)
        2
        >>> check_integer("workers", True, 1)
        Traceback (most recent call last):
        ...
        everyformer.errors.InputError: workers=True is not an integer >= 1. Give one such as
        workers=1.
    """
    if is_number(value) and isinstance(value, Integral) and int(value) >= least:
        return int(value)
    msg = f"{name}={shown(value)} is not an integer >= {least}. Give one such as"
    raise InputError(f"{msg} {name}={least}.")


def format_count(count: int) -> str:
    """An integer with thousands separators, or as a power of ten where that is long.

    Example:
        >>> format_count(250_075), format_count(10**40)
        ('250,075', '1.0e+40')
    """
    if count < LONG:
        return f"{count:,}"
    shift = max(0, count.bit_length() - 200)  # all digits of a long number take long
    with localcontext(prec=50, Emax=MAX_EMAX):
        return f"{Decimal(count >> shift) * Decimal(2) ** shift:.1e}"


def writable(value: Any) -> Any:
    """A value for a JSON file; an integer that no float64 holds becomes text.

    Example:
        >>> writable(250_075), writable(10**400)
        (250075, '1.0e+400')
    """
    is_huge = isinstance(value, int) and value.bit_length() >= 1024
    return format_count(value) if is_huge else value


def shown(value: object) -> str:
    """A value in a message; Python refuses to write integers of thousands of digits.

    Example:
        >>> shown(2.5), shown(10**5000)
        ('2.5', '<a number of 16,610 bits>')
    """
    if isinstance(value, int | Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        if bits > 200:
            return f"<a number of {bits:,} bits>"
    text = str(value) if isinstance(value, Fraction) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
