"""Unary heads for the tests, and what they compute at a point, in balls of 256 bits."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from everyformer.certify.compile.unary.error import HeadBound, Phi
from everyformer.certify.compile.unary.reference import Reference

IDENTITY = (Fraction(1), Fraction(0))


def reference(
    name: str, power: str | None = None, inner: tuple[Any, Any] = IDENTITY
) -> Reference:
    """g with rationals from text."""
    exponent = None if power is None else Fraction(power)
    return Reference(name, exponent, (Fraction(inner[0]), Fraction(inner[1])))


@dataclass(frozen=True)
class Case:
    """A head, what it stands for, and where."""

    phi: Phi
    reference: Reference
    low: Fraction
    high: Fraction


def gauss(fn: str, rho: float, m: int, N: int = 2) -> Case:
    """Equidistant knots on [-1, 1]: t^2, t^3, e^t, sin t, cos t."""
    h = 2 / N
    tau, sigma = -1 + h * np.arange(-m, N + m + 1), rho * h
    v = {
        "t^2": tau**2 - sigma**2,
        "t^3": tau**3 - 3 * tau * sigma**2,
        "exp": np.exp(tau - sigma**2 / 2),
        "sin": np.sin(tau) * np.exp(sigma**2 / 2),
        "cos": np.cos(tau) * np.exp(sigma**2 / 2),
    }[fn]
    g = reference("pow", fn[2:]) if fn.startswith("t^") else reference(fn)
    phi = Phi(tau / sigma**2, -(tau**2) / (2 * sigma**2), v)
    return Case(phi, g, Fraction(-1), Fraction(1))


def gamma(s: str, c: float, eps: float, low: float, high: float) -> Case:
    """Geometric knots t_k = low e^(ck): t^s, or log t for s = "log".

    alpha is the largest with |Gamma(alpha + 2 pi i / c)| / Gamma(alpha) < eps.
    """
    exponent = 0.0 if s == "log" else float(Fraction(s))
    least, most = max(exponent, 0.0) + 0.2, 200.0
    for _ in range(40):
        alpha = (least + most) / 2
        ratio = abs(flint.acb(alpha, 2 * math.pi / c).gamma()) / flint.arb(alpha).gamma()
        least, most = (alpha, most) if ratio < eps else (least, alpha)
    alpha = least
    below = math.log(1 + math.log(1 / eps) / alpha) + 0.8
    above = math.log(high / low) + math.log(1 / eps) / (alpha - max(exponent, 0.0))
    t = low * np.exp(c * np.arange(-math.ceil(below / c), math.ceil(above / c) + 1))
    if s == "log":
        v = np.log(t) + float(flint.arb(alpha).digamma()) - math.log(alpha)
    else:
        v = t**exponent * math.exp(math.lgamma(alpha) - math.lgamma(alpha - exponent))
        v = v / alpha**exponent
    g = reference("log") if s == "log" else reference("pow", s)
    return Case(
        Phi(-alpha / t, -alpha * np.log(t / low), v), g, Fraction(low), Fraction(high)
    )


def padded(a: list[float], b: list[float], v: list[float], count: int = 0) -> Phi:
    """A head with so many unused tokens."""
    unused = [0.0] * count
    return Phi(
        np.array(a + unused), np.array(b + [-(2.0**13)] * count), np.array(v + unused)
    )


def value_of(g: Reference, x: Any) -> Any:
    """fn(x) of a ball."""
    if g.power is not None:
        k = int(2 * g.power)
        root = x if k % 2 == 0 else x.sqrt()
        return root ** (k // 2 if k % 2 == 0 else k)
    if g.name == "logistic":
        return 1 / (1 + (-x).exp())
    return getattr(x, g.name)()


def at_point(case: Case, t: Fraction) -> dict[str, Any]:
    """All that a `HeadBound` bounds, at t."""
    a, b, v = (
        [flint.arb(x) for x in array.tolist()]
        for array in (case.phi.a, case.phi.b, case.phi.v)
    )
    with flint.ctx.workprec(256):
        x = flint.arb(flint.fmpq(t.numerator, t.denominator))
        argument = case.reference.inner[0] * t + case.reference.inner[1]
        argument = flint.arb(flint.fmpq(argument.numerator, argument.denominator))
        score = [slope * x + offset for slope, offset in zip(a, b, strict=True)]
        top = score[0]
        for one in score[1:]:
            top = top.max(one)
        p = [(one - top).exp() for one in score]
        total = sum(p, flint.arb(0))
        p = [one / total for one in p]
        phi = sum((q * w for q, w in zip(p, v, strict=True)), flint.arb(0))
        mean_a = sum((q * w for q, w in zip(p, a, strict=True)), flint.arb(0))
        sizes = [abs(k * x) + abs(q) for k, q in zip(a, b, strict=True)]
        most = sizes[0]
        for one in sizes[1:]:
            most = most.max(one)
        rows = list(zip(p, a, v, sizes, strict=True))
        zero = flint.arb(0)
        return {
            "error": abs(phi - value_of(case.reference, argument)),
            "slope": abs(sum((q * (w - phi) * (k - mean_a) for q, k, w, _ in rows), zero)),
            "moment": sum(
                (q * (s + abs(top) + 1) * abs(w - phi) for q, _, w, s in rows), zero
            ),
            "mean": sum((q * abs(w) for q, _, w, _ in rows), zero),
            "score": most,
            "least_score": top,
        }


def holds_at(bound: HeadBound, case: Case, t: Fraction) -> list[str]:
    """The names of the bounds that do not hold at t."""
    broken = list[str]()
    for name, value in at_point(case, t).items():
        limit = getattr(bound, name)
        ball = flint.arb(flint.fmpq(limit.numerator, limit.denominator))
        with flint.ctx.workprec(256):
            room = value - ball if name == "least_score" else ball - value
        if not room.is_finite() or room < 0:
            broken.append(name)
    return broken


def in_float64(case: Case, count: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Points, and |Phi - g| and the other numbers there, in plain float64."""
    low, high = float(case.low), float(case.high)
    t = np.linspace(low, high, count // 2)
    if low > 0:
        t = np.append(t, np.geomspace(low, high, count // 2))
    t = np.clip(t, low, high)
    phi = case.phi
    score = t[:, None] * phi.a + phi.b
    p = np.exp(score - score.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    value = p @ phi.v
    x = float(case.reference.inner[0]) * t + float(case.reference.inner[1])
    g = {
        "pow": lambda: x ** float(case.reference.power or 0),
        "logistic": lambda: 1 / (1 + np.exp(-x)),
    }.get(case.reference.name, lambda: getattr(np, case.reference.name)(x))()
    size = np.abs(t[:, None] * phi.a) + np.abs(phi.b)
    largest = np.abs(score.max(axis=1, keepdims=True))
    off = phi.v - value[:, None]
    spread = phi.a - (p @ phi.a)[:, None]
    return {
        "error": (t, np.abs(value - g)),
        "slope": (t, np.abs((p * off * spread).sum(axis=1))),
        "moment": (t, (p * (size + largest + 1) * np.abs(off)).sum(axis=1)),
        "mean": (t, p @ np.abs(phi.v)),
    }
