"""Maps rho from scores to probabilities, each with the scale t of Assumption 2, or without.

All work along the last axis. t is explicit, and any larger t works too; where there is
none, scores show it: rho[t v] stays away from one-hot for every t.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, inf, log
from types import FunctionType
from typing import ParamSpec
from weakref import WeakSet

import numpy as np
from jaxtyping import Float

from everyformer.errors import InputError
from everyformer.papers import YUN2020B, implements

Scores = Float[np.ndarray, "*batch m"]
Scale = Callable[[float, float, int], float]
BISECTIONS = 60


@dataclass(frozen=True)
class ProbabilityMap:
    """A map from scores to probabilities.

    Attributes:
        name: What it is called.
        function: The map, along the last axis.
        scale: t for zeta, eta and m; None where there is no such t, or it is not known.
        formula: t, or why there is no such number, in words.
        one_hot: Whether rho[t v] is one-hot at that t.
        failing: For m: scores v with v_1 the largest, and what rho[t v]_1 stays below for
            every t > 0; None where there is a scale, or nothing is known.
    """

    name: str
    function: Callable[[Scores], Scores]
    scale: Scale | None
    formula: str
    one_hot: bool = False
    failing: Callable[[int], tuple[tuple[float, ...], float]] | None = None

    def __call__(self, scores: Scores) -> Scores:
        """rho of scores, along the last axis."""
        return self.function(scores)


P = ParamSpec("P")
_OWN = WeakSet[ProbabilityMap]()


def _noted(make: Callable[P, ProbabilityMap]) -> Callable[P, ProbabilityMap]:
    def made(*args: P.args, **kwargs: P.kwargs) -> ProbabilityMap:
        _OWN.add(rho := make(*args, **kwargs))
        return rho

    return made


_own = _noted(ProbabilityMap)
"""Makes a map of the library."""


def is_own(rho: object) -> bool:
    """Whether a map is one of the library's: only of these are scale and failing proved.

    A copy is, since its functions are the same. Only functions, not other objects that may
    be called, are equal to themselves alone.
    """
    if type(rho) is not ProbabilityMap:
        return False
    parts = filter(None, (rho.function, rho.scale, rho.failing))
    return all(isinstance(part, FunctionType) for part in parts) and rho in _OWN


def _softmax(v: Scores) -> Scores:
    powers = np.exp(v - v.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _largest(v: Scores, k: int) -> np.ndarray:
    """Where the k largest entries are; of equal ones the first."""
    order = np.argsort(-v, axis=-1, kind="stable")[..., :k]
    kept = np.zeros(v.shape, dtype=bool)
    np.put_along_axis(kept, order, True, axis=-1)
    return kept


def _sparsemax(v: Scores) -> Scores:
    """The point of the simplex nearest to v: [v - tau]_+ (Martins, Astudillo 2016)."""
    z = v - v.max(axis=-1, keepdims=True)
    descending = -np.sort(-z, axis=-1)
    sums = np.cumsum(descending, axis=-1)
    k = np.arange(1, z.shape[-1] + 1)
    support = (1 + k * descending > sums).sum(axis=-1, keepdims=True)
    tau = (np.take_along_axis(sums, support - 1, axis=-1) - 1) / support
    return np.maximum(z - tau, 0)


def _entmax(v: Scores, alpha: float) -> Scores:
    """[(alpha - 1) v - tau]_+^(1 / (alpha - 1)), tau by bisection (Peters et al. 2019)."""
    z = (alpha - 1) * (v - v.max(axis=-1, keepdims=True))

    def at(tau: np.ndarray) -> np.ndarray:
        return np.maximum(z - tau, 0) ** (1 / (alpha - 1))

    low = np.full((*z.shape[:-1], 1), -1.0)  # the sum is at least 1 there
    high = np.full_like(low, -(z.shape[-1] ** (1 - alpha)))  # and at most 1 here
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = at(middle).sum(axis=-1, keepdims=True) >= 1
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found = at(low)
    return found / found.sum(axis=-1, keepdims=True)


def _hardmax(v: Scores) -> Scores:
    return _largest(v, 1).astype(v.dtype)


def _shares(v: Scores) -> Scores:
    return v / v.sum(axis=-1, keepdims=True)


def _softmax_scale(zeta: float, eta: float, m: int) -> float:
    """m - 1 entries of at most e^(-t zeta) beside one: t = log((m-1)/eta)/zeta."""
    t = (log(m - 1) - log(eta)) / zeta if m > 1 else 0.0
    return t if t > 0 else 1.0


softmax = _own(
    "softmax", _softmax, implements(YUN2020B, "Assumption 2")(_softmax_scale),
    "t = log((m-1)/eta)/zeta",
)  # fmt: skip

sparsemax = _own(
    "sparsemax", _sparsemax, lambda zeta, eta, m: 1 / zeta, "t = 1/zeta", one_hot=True
)

hardmax = _own("hardmax", _hardmax, lambda zeta, eta, m: 1.0, "t > 0", one_hot=True)

sum_normalisation = _own(
    "sum-normalisation",
    _shares,
    None,
    "v / sum(v) does not change with t",
    failing=lambda m: ((2.0, *(1.0,) * (m - 1)), 2 / (m + 1)),
)
"""v / sum(v), for scores that are positive."""

spherical_softmax = _own(
    "spherical-softmax",
    lambda v: _shares(v**2),
    None,
    "v^2 / sum(v^2) does not change with t",
    failing=lambda m: ((2.0, *(1.0,) * (m - 1)), 4 / (m + 3)),
)


def top_k_softmax(k: int) -> ProbabilityMap:
    """Softmax on the k largest entries, zero elsewhere.

    Raises:
        InputError: If k < 1.
    """
    if k < 1:
        raise InputError(f"top-k softmax with k={k}: at least one entry must be kept.")

    def rho(v: Scores) -> Scores:
        return _softmax(np.where(_largest(v, k), v, -np.inf))

    formula = "t > 0" if k == 1 else "t = log((k-1)/eta)/zeta"
    name = f"top-{k} softmax"
    return _own(
        name,
        rho,
        lambda zeta, eta, m: _softmax_scale(zeta, eta, min(k, m)),
        formula,
        k == 1,
    )


def entmax(alpha: float) -> ProbabilityMap:
    """alpha-entmax, p_i = [(alpha-1) v_i - tau]_+^(1/(alpha-1)).

    Raises:
        InputError: If alpha <= 1; alpha = 1 would be softmax.
    """
    if not 1 < alpha < inf:
        raise InputError(f"entmax with alpha={alpha}: alpha > 1 is needed; 1 is softmax.")
    return _own(
        f"{alpha:g}-entmax",
        lambda v: _entmax(v, alpha),
        lambda zeta, eta, m: 1 / ((alpha - 1) * zeta),
        "t = 1/((alpha-1) zeta)",
        one_hot=True,
    )


def sparsegen(lam: float) -> ProbabilityMap:
    """sparsegen-lin, sparsemax(v / (1 - lambda)).

    Raises:
        InputError: If lambda >= 1.
    """
    if not -inf < lam < 1:
        raise InputError(f"sparsegen-lin with lambda={lam}: lambda < 1 is needed.")
    return _own(
        f"sparsegen-lin, lambda = {lam:g}",
        lambda v: _sparsemax(v / (1 - lam)),
        lambda zeta, eta, m: (1 - lam) / zeta,
        "t = (1-lambda)/zeta",
        one_hot=True,
    )


def sparse_hourglass(q: float) -> ProbabilityMap:
    """sparsehourglass, sparsemax((1 + m q) v / (|sum v| + m q)).

    It fails for every q: on t (N+1, N, .., N) with N > q the largest score leads by less
    than gap = (1 + m q)/(m N + 1) < 1 after the division, whatever t, and sparsemax gives
    it (1 + (m-1) gap)/m at most.

    Raises:
        InputError: If q <= 0: the map is not defined where the scores sum to 0.
    """
    if not 0 < q < inf:
        raise InputError(f"sparsehourglass with q={q}: q > 0 is needed.")

    def rho(v: Scores) -> Scores:
        m = v.shape[-1]
        size = np.abs(v.sum(axis=-1, keepdims=True)) + m * q
        return _sparsemax((1 + m * q) * v / size)

    def failing(m: int) -> tuple[tuple[float, ...], float]:
        N = float(floor(q) + 1)
        gap = (1 + m * q) / (m * N + 1)
        return (N + 1, *(N,) * (m - 1)), (1 + (m - 1) * gap) / m

    formula = "the division keeps the scores within bounds, whatever t"
    name = f"sparsehourglass, q = {q:g}"
    return _own(name, rho, None, formula, failing=failing)


NAMED: dict[str, ProbabilityMap] = {
    one.name: one
    for one in (softmax, sparsemax, hardmax, sum_normalisation, spherical_softmax)
}
WITH_PARAMETER: dict[str, Callable[[float], ProbabilityMap]] = {
    "entmax": entmax,
    "sparsegen": sparsegen,
    "sparsehourglass": sparse_hourglass,
}


def rho_by_name(name: str) -> ProbabilityMap:
    """The map of a name: softmax, sparsemax, top-k:4, entmax:1.5, ..

    Raises:
        InputError: If there is no such map.
    """
    kind, colon, parameter = name.partition(":")
    if name in NAMED:
        return NAMED[name]
    try:
        if kind == "top-k" and colon:
            return top_k_softmax(int(parameter))
        if kind in WITH_PARAMETER and colon:
            return WITH_PARAMETER[kind](float(parameter))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        msg = f"{name!r}: {parameter!r} is not a number. Write for example {kind}:2."
        raise InputError(msg) from error
    examples = ("top-k:4", "entmax:1.5", "sparsegen:0.5", "sparsehourglass:0.1")
    known = ", ".join([*NAMED, *examples])
    raise InputError(f"There is no probability map {name!r}. Choose one of {known}.")
