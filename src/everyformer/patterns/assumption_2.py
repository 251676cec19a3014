"""Assumption 2 of Yun et al. 2020b on the map rho that replaces softmax.

For any zeta > 0 and eta in (0, 1] there is t > 0 such that for every v whose entry j*
leads by zeta, v_j* - max_{j != j*} v_j >= zeta, the map gives it almost everything:
rho[t v]_j* >= 1 - eta and sum_{j != j*} rho[t v]_j <= eta.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.errors import InputError
from everyformer.papers import YUN2020B, implements
from everyformer.patterns.probability_maps import ProbabilityMap, is_own
from everyformer.verdict import Verdict

TEXT = __doc__
"""What `everyformer explain A2` prints."""

TRIALS = 64
DOUBLINGS = 40
"""A map of the user's is tried at t = 1/zeta, 2/zeta, 4/zeta, .., 2^40/zeta."""

SETTLED = 0.99
"""What is left of a gap after the last half of the doublings, if it closes no more."""

LEAST = float(np.finfo(np.float64).tiny)
MOST_SCORES = 10**6
"""Of a counterexample."""

Scores = tuple[float, ...]
Rho = ProbabilityMap | Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Assumption2:
    """What was found of a map.

    Attributes:
        name: The map.
        verdict: PROVED with a scale, REFUTED with scores, UNKNOWN; a function of the
            user's is always UNKNOWN, with scores where it was seen to fail.
        zeta: The margin.
        eta: What may be left for the others.
        m: Number of scores.
        scale: t for these three.
        witness: Scores v for which rho[t v] stays away from one-hot for every t.
        reached: What rho[t v]_j* stays below there (proved), for a map of the library.
        reached_sampled: The largest rho[t v]_j* seen there, for a map of the user's.
        reason: In words.
    """

    name: str
    verdict: Verdict
    zeta: float
    eta: float
    m: int
    reason: str
    scale: float | None = None
    witness: tuple[float, ...] | None = None
    reached: float | None = None
    reached_sampled: float | None = None

    def __str__(self) -> str:
        return f"{self.verdict}: Assumption 2 for {self.name}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        witness = None if self.witness is None else list(self.witness)
        return {**vars(self), "verdict": str(self.verdict), "witness": witness}


@implements(YUN2020B, "Assumption 2")
def assumption_2(
    rho: Rho, zeta: float = 1.0, eta: float = 0.01, m: int = 2, *, seed: int = 0
) -> Assumption2:
    """Judge a map, and give the scale t for a margin.

    A map of the library has a formula for t, or scores that refute it. A function of the
    user's is never proved: scores that refute it are looked for.

    Args:
        rho: The map, along the last axis.
        zeta: The margin by which the largest score leads.
        eta: What the others may get.
        m: Number of scores: the largest |A_k|.
        seed: What the scores are drawn from that a user's map is tried on.

    Raises:
        InputError: If a number is out of range, or rho returns no probabilities.

    Example:
        >>> from everyformer.patterns.probability_maps import softmax, sum_normalisation
        >>> round(assumption_2(softmax, zeta=0.5, eta=0.01, m=65).scale, 3)
        17.528
        >>> print(assumption_2(sum_normalisation, m=3))
        REFUTED: Assumption 2 for sum-normalisation: v / sum(v) does not change with t; on
        v = (2, 1, 1) the largest gets at most 0.5, whatever t
    """
    whole = isinstance(m, int | np.integer)
    if whole and m >= 2**63:
        raise InputError("m is a number of scores: at most 2^63 - 1.")
    if not (0 < zeta < np.inf and 0 < eta <= 1 and whole and m >= 1):
        msg = f"zeta={zeta}, eta={eta}, m={m}: zeta > 0, 0 < eta <= 1 and a whole m >= 1 "
        raise InputError(f"{msg}are needed.")
    if not callable(rho):
        msg = f"rho={rho!r} is not a map from scores to probabilities. Give a function, or"
        raise InputError(f"{msg} one of everyformer.patterns.probability_maps.")
    if not isinstance(rho, ProbabilityMap) or not is_own(rho):
        return _of_users_function(rho, zeta, eta, m, np.random.default_rng(seed))
    if rho.scale is not None:
        t = _scale(rho.name, rho.scale, zeta, eta, m)
        result = "one-hot" if rho.one_hot else "one-hot up to eta"
        sizes = f"zeta = {zeta:g}, eta = {eta:g}, m = {m}"
        reason = f"{result} for {rho.formula} or more; {t:.4g} at {sizes}"
        return Assumption2(rho.name, Verdict.PROVED, zeta, eta, m, reason, scale=t)
    if rho.failing is None:
        return Assumption2(rho.name, Verdict.UNKNOWN, zeta, eta, m, rho.formula)
    v, reached = _failing(rho.name, rho.failing, zeta, max(m, 2))
    reason = (
        f"{rho.formula}; on v = {_listed(v)} the largest gets at most {reached:.4g}, "
        "whatever t"
    )
    return Assumption2(
        rho.name, Verdict.REFUTED, zeta, eta, m, reason, witness=v, reached=reached
    )


def _scale(
    name: str, scale: Callable[[float, float, int], float], zeta: float, eta: float, m: int
) -> float:
    """t, rounded up: every larger one will do, too.

    Raises:
        InputError: If it is beyond float64.
    """
    try:
        t = max(scale(zeta, eta, m) * (1 + 2.0**-48), LEAST)
    except (ZeroDivisionError, OverflowError):
        t = np.inf
    if not t < np.inf:
        msg = f"zeta={zeta}, eta={eta}, m={m}: t for {name} is beyond float64"
        raise InputError(f"{msg}. Take a larger zeta or eta.")
    return t


def _failing(
    name: str, failing: Callable[[int], tuple[Scores, float]], zeta: float, m: int
) -> tuple[Scores, float]:
    """Scores that lead by zeta, and below what the largest stays there.

    Raises:
        InputError: If float64 does not have them, or there are too many.
    """
    if m <= MOST_SCORES:
        unscaled, reached = failing(m)
        v = tuple(zeta * score for score in unscaled)
        if v[0] < np.inf and v[0] - max(v[1:]) >= (1 - 1e-9) * zeta and reached < 1:
            return v, reached
    msg = f"zeta={zeta}, m={m}: the scores on which {name} fails cannot be written down"
    raise InputError(f"{msg} in float64. Take numbers nearer to 1.")


def _of_users_function(
    rho: Callable[[np.ndarray], np.ndarray],
    zeta: float,
    eta: float,
    m: int,
    rng: np.random.Generator,
) -> Assumption2:
    """Look for scores on which the largest never gets 1 - eta, at growing t."""
    name = getattr(rho, "__name__", type(rho).__name__)
    most = f"2^{DOUBLINGS}/zeta"
    refusal: InputError | None = None
    followed = 0
    for v in _scores(zeta, max(m, 2), rng):
        try:
            seen = _at_growing_scales(rho, v, zeta, name)
        except InputError as error:  # it may take some scores alone, say positive ones
            refusal = refusal or error
            continue
        if seen is None:
            continue
        followed += 1
        gaps = 1 - seen
        if gaps.min() > eta and gaps[-1] >= SETTLED * gaps[len(gaps) // 2]:
            top = float(seen.max())
            reason = (
                f"on v = {_listed(v)} the largest gets {top:.4g} at most, at every t tried "
                f"from 1/zeta to {most}, and no more as t grows"
            )
            reason += ". That it stays so for larger t is not proved"
            return Assumption2(
                name, Verdict.UNKNOWN, zeta, eta, m, reason, witness=tuple(v.tolist()),
                reached_sampled=top,
            )  # fmt: skip
    if refusal is not None:
        raise refusal
    reason = (
        f"a function of yours: no counterexample in {followed} draws of scores, at t up to "
        f"{most}; trials prove nothing"
    )
    if followed < TRIALS:
        overflowing = TRIALS - followed
        reason += f". On {overflowing} others it gave no finite numbers as t grew"
    return Assumption2(name, Verdict.UNKNOWN, zeta, eta, m, reason)


def _scores(zeta: float, m: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Scores whose first leads by zeta: simple ones, shifted ones, and random ones."""
    led = [np.zeros(m), -np.arange(m, dtype=float)]
    led += [-rng.exponential(size=m) for _ in range(TRIALS - len(led))]
    shifts = (0.0, 1.0, 2.0, -1.0, -2.0, 10.0, 100.0)
    found: list[np.ndarray] = []
    for place, others in enumerate(led):
        v = zeta * others
        v[0] = zeta * (1 + others[1:].max())
        found.append(v + zeta * shifts[place % len(shifts)])
    return found


def _at_growing_scales(
    rho: Callable[[np.ndarray], np.ndarray], v: np.ndarray, zeta: float, name: str
) -> np.ndarray | None:
    """rho[t v]_1 for t = 1/zeta, 2/zeta, ..; None if it is not finite to the end.

    Raises:
        InputError: If rho fails, or gives no probabilities; at the first t not even finite
            numbers, where nothing is large.
    """
    best: list[float] = []
    for doubling in range(DOUBLINGS + 1):
        scores = v * (2.0**doubling / zeta)
        with np.errstate(all="ignore"):
            weights = _weights(rho, scores, name)
        if not np.isfinite(weights).all() and doubling:
            return None
        if not (weights.min() >= -1e-9 and abs(weights.sum() - 1) <= 1e-6):
            msg = (
                f"{name} maps the scores {_listed(scores)} to {_listed(weights)}, which "
                f"sum to {weights.sum():.4g}: probabilities are needed, for any scores."
            )
            raise InputError(msg)
        best.append(float(weights[0]))
    return np.array(best)


def _weights(
    rho: Callable[[np.ndarray], np.ndarray], scores: np.ndarray, name: str
) -> np.ndarray:
    """What rho makes of scores: a real number for each."""
    try:
        weights = np.asarray(rho(scores.copy()))
    except Exception as error:
        msg = (
            f"{name} fails on the scores {_listed(scores)}: {type(error).__name__}: {error}"
        )
        raise InputError(f"{msg.rstrip('.')}. It must map any scores.") from error
    if weights.shape != scores.shape or weights.dtype.kind not in "fiu":
        msg = (
            f"{name} maps {len(scores)} scores to an array of shape {weights.shape} and "
            f"dtype {weights.dtype}: a probability for each of them is needed, shape "
            f"{scores.shape}, real."
        )
        raise InputError(msg)
    return weights


def _listed(v: np.ndarray | tuple[float, ...]) -> str:
    shown = ", ".join(f"{float(score):g}" for score in list(v)[:6])
    return f"({shown}{', ..' * (len(v) > 6)})"
