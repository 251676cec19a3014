"""Exact rationals: conversion, common denominators, roots and printing rounded up."""

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

EXACT_BITS = 2**17
"""Bits of a power that is still taken exactly before its root."""

MOST_BITS = 2**23
"""Bits of the largest power that is taken."""

_RATIONAL = re.compile(r"-?[0-9]{1,4000}(/[0-9]{1,4000})?")


def parse_rational(text: Any) -> Fraction:
    """A rational from text that nobody vouches for: digits, and digits.

    No exponents: 1e999999999 is a short text and a number without end.

    Raises:
        ValueError: If it is anything else.

    Example:
        >>> parse_rational("-3/4")
        Fraction(-3, 4)
    """
    if not isinstance(text, str) or not _RATIONAL.fullmatch(text):
        msg = f"{str(text)[:40]!r} is not the text of a rational"
        raise ValueError(msg)
    return Fraction(text)


def is_power_of_two(value: int) -> bool:
    """True when value is 1, 2, 4, 8, ...

    Example:
        >>> [k for k in range(20) if is_power_of_two(k)]
        [1, 2, 4, 8, 16]
    """
    return value > 0 and value & (value - 1) == 0


def simplest(value: int | float | Fraction) -> int | Fraction:
    """The same number, exactly, as an int where it is one and as a Fraction otherwise.

    Example:
        >>> simplest(0.5), simplest(4.0), simplest(Fraction(6, 3))
        (Fraction(1, 2), 4, 2)
    """
    if type(value) is int:
        return value
    if type(value) is not Fraction:
        value = Fraction(value.item() if isinstance(value, np.generic) else value)
    return value.numerator if value.denominator == 1 else value


_simplest_each = np.frompyfunc(simplest, 1, 1)
_denominator_each = np.frompyfunc(lambda value: value.denominator, 1, 1)


def exact_array(values: Any) -> np.ndarray:
    """An object array of ints and Fractions equal to the given numbers, exactly."""
    array = np.asarray(values)
    if array.size == 0:
        return array.astype(object)
    return np.asarray(_simplest_each(array), dtype=object).reshape(array.shape)


def common_denominator(arrays: Iterable[np.ndarray]) -> int:
    """The least positive integer D such that D times every entry is an integer."""
    result = 1
    for array in arrays:
        if array.size == 0 or array.dtype.kind in "iub":
            continue
        exact = exact_array(np.unique(array) if array.dtype != object else array)
        result = math.lcm(result, *set(np.ravel(_denominator_each(exact)).tolist()))
    return result


def to_float(array: np.ndarray) -> np.ndarray:
    """Round every entry of an exact array to the nearest float64."""
    return array.astype(np.float64)


def rational_root(value: int | Fraction) -> Fraction | None:
    """The square root of a rational, where it is rational."""
    if value <= 0:
        return None
    top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
    exact = top * top == value.numerator and bottom * bottom == value.denominator
    return Fraction(top, bottom) if exact else None


def power_up(base: Fraction, exponent: Fraction) -> Fraction:
    """An upper bound of base ** exponent, at most one part in 2^60 too large.

    Only where base ** numerator is below 2^-2^23 may it be larger, by less than that.

    Args:
        base: A number >= 0.
        exponent: A number > 0 whose numerator and denominator are small.

    Raises:
        OverflowError: If base ** numerator is beyond 2^2^23.

    Example:
        >>> power_up(Fraction(2), Fraction(2))
        Fraction(4, 1)
        >>> root = power_up(Fraction(2), Fraction(1, 2))
        >>> root**2 >= 2 and float(root) == 2**0.5
        True
    """
    if base < 0 or exponent <= 0:
        msg = f"power_up needs base >= 0 and exponent > 0, got {base} and {exponent}."
        raise ValueError(msg)
    size = base.numerator.bit_length() + base.denominator.bit_length()
    if size * exponent.numerator > EXACT_BITS:
        magnitude = base.numerator.bit_length() - base.denominator.bit_length()
        if magnitude * exponent.numerator > MOST_BITS:
            msg = f"a power of about 2^({magnitude} * {exponent.numerator})"
            raise OverflowError(msg)
        base = max(base, Fraction(1, 2 ** (MOST_BITS // exponent.numerator)))
        base = _shortened_up(base, 66 + exponent.numerator.bit_length())
    return _root_up(base**exponent.numerator, exponent.denominator)


def short_up(value: Fraction, bits: int) -> Fraction:
    """The number, if it has so many bits at most; else a shorter one, a little larger."""
    top, bottom = value.numerator, value.denominator
    if top.bit_length() <= bits and bottom.bit_length() <= bits:
        return value
    shift = bits - (top.bit_length() - bottom.bit_length())
    whole = -((-top << shift) // bottom) if shift >= 0 else -(-top // (bottom << -shift))
    return Fraction(whole, 1 << shift) if shift >= 0 else Fraction(whole << -shift)


def _shortened_up(value: Fraction, bits: int) -> Fraction:
    """An upper bound of a number >= 0 with so many good bits, times a power of two."""
    magnitude = value.numerator.bit_length() - value.denominator.bit_length()
    shift = bits - magnitude
    scale = Fraction(2) ** shift
    return _ceil(value * scale) / scale


def _root_up(value: Fraction, degree: int) -> Fraction:
    """An upper bound of the root of the given degree, 60 good bits."""
    if degree == 1 or value == 0:
        return value
    # Scale by 2^(degree * shift) so that the integer root has about 64 bits.
    magnitude = value.numerator.bit_length() - value.denominator.bit_length()
    shift = 64 - magnitude // degree
    up, down = max(degree * shift, 0), max(-degree * shift, 0)
    whole = -(-(value.numerator << up) // (value.denominator << down))
    return Fraction(_integer_root_up(whole, degree)) / Fraction(2) ** shift


def _integer_root_up(value: int, degree: int) -> int:
    """The least integer whose power of the given degree is at least value."""
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**degree >= value:
            high = middle
        else:
            low = middle + 1
    return low


def format_up(value: Fraction, digits: int = 4) -> str:
    """Decimal text of a number >= 0 that is never below it.

    Example:
        >>> format_up(Fraction(1, 3))
        '3.334e-01'
        >>> format_up(Fraction(1, 2))
        '5.000e-01'
        >>> format_up(Fraction(99999, 10000))
        '1.000e+01'
    """
    if value < 0:
        msg = f"format_up prints upper bounds of sizes, and {value} is negative."
        raise ValueError(msg)
    if value == 0:
        return "0"
    exponent = _decimal_exponent(value)
    mantissa = _ceil(value / Fraction(10) ** (exponent - digits + 1))
    if mantissa == 10**digits:
        mantissa, exponent = 10 ** (digits - 1), exponent + 1
    text = str(mantissa)
    point = "." if digits > 1 else ""
    return f"{text[0]}{point}{text[1:]}e{exponent:+03d}"


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _decimal_exponent(value: Fraction) -> int:
    """The e with 10^e <= value < 10^(e+1)."""
    exponent = len(str(value.numerator)) - len(str(value.denominator))
    return exponent if Fraction(10) ** exponent <= value else exponent - 1
