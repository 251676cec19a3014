"""Numbers for the symbols of an alphabet, such that sums of n of them name the multiset.

phi is a B_n set if all sums of n of its values, repeats allowed, are distinct.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from everyformer.errors import GridError

MAX_STEPS = 10**7
"""Most powers of x that the search for a Bose-Chowla set walks through."""

BLOCK = 1 << 14

Polynomial = tuple[int, ...]
"""Coefficients mod q, lowest first; a monic one of degree n without its leading 1."""


def bose_chowla(symbols: int, n: int) -> np.ndarray:
    """phi(0) .. phi(V-1) with distinct sums of n values, each at most n (q^n - 2).

    q is the least prime >= V, P a monic polynomial of degree n over GF(q) for which x is
    primitive mod P, and phi(a) the exponent e with x^e = x + a mod P.

    Proof that sums are distinct: equal sums of n exponents mean prod (x + a_k) = prod
    (x + b_k) in GF(q^n). The difference of the two monic polynomials of degree n has degree
    < n and vanishes at x, whose minimal polynomial P has degree n; so it is 0, and the
    multisets {a_k} and {b_k} are equal.

    This is the set of R. C. Bose and S. Chowla, "Theorems in the additive theory of
    numbers", Comment. Math. Helv. 37 (1962), for prime fields. For very small alphabets
    0, 1, n+1, (n+1)^2, ... has a smaller largest sum, and is taken.

    Args:
        symbols: V.
        n: How many are added.

    Raises:
        GridError: If q^n is above the limit.

    Example:
        >>> bose_chowla(3, 2).tolist()
        [0, 1, 3]
    """
    if n == 1:
        return np.arange(symbols)
    powers = np.array([0, *((n + 1) ** s for s in range(symbols - 1))], dtype=object)
    q = prime_from(max(symbols, 2))
    if powers.max() <= q**n - 2:
        return powers.astype(np.int64)
    if q**n > MAX_STEPS:
        msg = (
            f"{symbols} symbols and {n} tokens need a Bose-Chowla set of {q}^{n} = "
            f"{q**n:.3g} steps, more than the limit of {MAX_STEPS:.0e}. Use a coarser "
            "grid, or positions (positional=True)."
        )
        raise GridError(msg)
    P = _primitive(q, n)
    code = np.full(q, -1, dtype=np.int64)
    for start, powers in _powers_of_x(P, q):
        linear = np.flatnonzero((powers[:, 1] == 1) & ~powers[:, 2:].any(axis=1))
        inside = linear[start + linear < q**n - 1]
        code[powers[inside, 0]] = start + inside
    return code[:symbols]


def _powers_of_x(P: Polynomial, q: int) -> Iterator[tuple[int, np.ndarray]]:
    """x^0, x^1, ... up to x^(q^n - 2) mod P, block by block, as rows of coefficients.

    Multiplication by x^m is linear: its matrix has the rows x^m, x^(m+1), ...
    """
    n = len(P)

    def times_x_to(m: int) -> np.ndarray:
        return np.array([_power_of_x(m + i, P, q) for i in range(n)])

    powers = np.eye(1, n, dtype=np.int64)
    while len(powers) < min(BLOCK, q**n - 1):
        powers = np.concatenate([powers, powers @ times_x_to(len(powers)) % q])
    step, size = times_x_to(len(powers)), len(powers)
    for start in range(0, q**n - 1, size):
        yield start, powers
        powers = powers @ step % q


def prime_from(least: int) -> int:
    """The smallest prime that is at least as large."""
    q = least
    while any(q % r == 0 for r in range(2, int(q**0.5) + 1)):
        q += 1
    return q


def _prime_factors(value: int) -> Iterator[int]:
    r = 2
    while r * r <= value:
        if value % r == 0:
            yield r
            while value % r == 0:
                value //= r
        r += 1
    if value > 1:
        yield value


def _primitive(q: int, n: int) -> Polynomial:
    """A monic P of degree n such that x generates the non-zero elements of GF(q)[x]/P.

    x has order q^n - 1 exactly if x^(q^n - 1) = 1 and x^((q^n - 1)/r) != 1 for the primes
    r. Then its powers are all non-zero residues, so all of them are units, and P is
    irreducible.
    """
    order = q**n - 1
    divisors = [order // r for r in _prime_factors(order)]
    one: Polynomial = (1,) + (0,) * (n - 1)
    for tail in product(range(q), repeat=n):
        P: Polynomial = tail[::-1]
        if P[0] == 0:
            continue
        if _power_of_x(order, P, q) == one and all(
            _power_of_x(e, P, q) != one for e in divisors
        ):
            return P
    msg = f"GF({q}^{n}) has a primitive element, so this line is not reached."
    raise AssertionError(msg)


def _times_x(a: Polynomial, P: Polynomial, q: int) -> Polynomial:
    top = a[-1]
    return tuple((low - top * p) % q for low, p in zip((0, *a[:-1]), P, strict=True))


def _times(a: Polynomial, b: Polynomial, P: Polynomial, q: int) -> Polynomial:
    result = (0,) * len(P)
    for entry in reversed(b):
        shifted = _times_x(result, P, q)
        result = tuple((s + entry * t) % q for s, t in zip(shifted, a, strict=True))
    return result


def _power_of_x(e: int, P: Polynomial, q: int) -> Polynomial:
    n = len(P)
    result: Polynomial = (1,) + (0,) * (n - 1)
    for bit in bin(e)[2:]:
        result = _times(result, result, P, q)
        if bit == "1":
            result = _times_x(result, P, q)
    return result
