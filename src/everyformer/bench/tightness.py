"""How tight certificates are: the proved bound over the measured distance, case by case.

The cases were listed before any bound was improved. Each network is built and certified;
then f and the network are run at the midpoints of a fine lattice, with the same number of
points in every cell. That distance is measured and proves nothing.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.methods import averaging, partition
from everyformer.bench.results import environment
from everyformer.bench.tables import table_of
from everyformer.construct.pipeline import Built, construct
from everyformer.construct.registry import DEFAULT
from everyformer.errors import EveryformerError
from everyformer.progress import Progress, no_progress
from everyformer.targets.gallery import GALLERY
from everyformer.targets.target import Target

POINTS = 2**18
"""Points of the lattice on which the distance is measured, at most."""

CHUNK = 2**14
GOAL = 2.0
"""The ratio that every case should stay below."""

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A function to certify, and how.

    Attributes:
        name: Of the function.
        family: What makes it hard.
        target: Makes the function.
        grid: K.
        p: The exponent.
        options: Further arguments of `construct`.
    """

    name: str
    family: str
    target: Callable[[], Target]
    grid: int
    p: float = 2
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def _case(
    family: str,
    name: str,
    function: Function,
    n: int = 1,
    grid: int = 16,
    p: float = 2,
    low: float = 0.0,
    high: float = 1.0,
    **options: Any,
) -> Case:
    """A case of n tokens with one coordinate in [low, high]."""

    def target() -> Target:
        return Target(function, n, 1, domain=[(low, high)], name=name)

    return Case(name, family, target, grid, p, options)


def _gallery(name: str, n: int, d: int, grid: int, p: float = 2, **options: Any) -> Case:
    title = f"{name}({n}, {d})"
    return Case(title, "gallery", lambda: GALLERY[name](n, d), grid, p, options)


def _softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-2, keepdims=True))
    return weights / weights.sum(-2, keepdims=True)


def _rotation(sharpness: float) -> Function:
    """Softmax over the tokens, each weight one place on."""
    return lambda x: np.roll(_softmax(sharpness * x), 1, axis=-2)


def _std(x: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x.std(-2, keepdims=True), x.shape)


def _layer_norm(x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-2, keepdims=True)
    return centred / np.sqrt(x.var(-2, keepdims=True) + 1e-5)


def _log_sum_exp(x: np.ndarray) -> np.ndarray:
    top = (4 * x).max(-2, keepdims=True)
    total = top + np.log(np.exp(4 * x - top).sum(-2, keepdims=True))
    return np.broadcast_to(total, x.shape)


def _peak(x: np.ndarray) -> np.ndarray:
    return 1 / (x**2 + 1e-4)


def _circle(x: np.ndarray) -> np.ndarray:
    return np.sqrt(1 - x**2)


def _binary_entropy(x: np.ndarray) -> np.ndarray:
    return -x * np.log(x) - (1 - x) * np.log(1 - x)


CASES = (
    _case("softmax", "softmax rotation, 1", _rotation(1), n=3, grid=8),
    _case("softmax", "softmax rotation, 5", _rotation(5), n=2),
    _case("softmax", "softmax rotation, 8", _rotation(8), n=2),
    _case(
        "softmax", "softmax rotation, 4", _rotation(4), n=3, grid=8, method=averaging.NAME
    ),
    _case("rational", "1 / (x^2 + 1e-4), p = 2", _peak, low=-1.0),
    _case("rational", "1 / (x^2 + 1e-4), p = 1", _peak, p=1, low=-1.0),
    _case("rational", "1 / (x^2 + 1e-4), K = 64", _peak, grid=64),
    _case("rational", "x / (1 + 50 x^2)", lambda x: x / (1 + 50 * x**2), low=-1.0),
    _case("large box", "x on [0, 1e12]", lambda x: x, grid=256, high=1e12),
    _case("large box", "x on [-1e12, 1e12]", lambda x: x, grid=64, low=-1e12, high=1e12),
    _case("large box", "reverse", lambda x: x[..., ::-1, :], 2, 32, low=-1e12, high=1e12),
    _case("root", "sqrt(1 - x^2)", _circle),
    _case("root", "sqrt(1 - x^2) on [-1, 1]", _circle, low=-1.0),
    _case("root", "sqrt(x)", np.sqrt),
    _case("log", "x log x", lambda x: x * np.log(x)),
    _case("log", "binary entropy", _binary_entropy),
    _case("log", "log(x + 1e-3)", lambda x: np.log(x + 1e-3)),
    _case("log", "log-sum-exp", _log_sum_exp, n=3, grid=8),
    _case("std", "std, n = 2", _std, n=2),
    _case("std", "std, n = 3", _std, n=3, grid=8),
    _case("std", "layer norm", _layer_norm, n=2),
    _case("kink", "step at 0.3", lambda x: np.where(x > 0.3, 1.0, 0.0)),
    _case("kink", "x^2 or 1 - x", lambda x: np.where(x > 0.3, x**2, 1 - x)),
    _case("kink", "sqrt|x - 0.3|", lambda x: np.sqrt(np.abs(x - 0.3))),
    _case(
        "kink",
        "larger gets 1",
        lambda x: np.where(x >= x.max(-2, keepdims=True), 1.0, 0.0),
        n=2,
    ),
    _gallery("soft_attention", 2, 1, 16),
    _gallery("soft_attention", 3, 1, 8, method=averaging.NAME),
    _gallery("distance_to_maximum", 3, 1, 8),
    _gallery("smooth_rank", 2, 1, 16),
    _gallery("smooth_bump", 2, 1, 16),
    _gallery("sort", 3, 1, 8),
    _gallery("prefix_mean", 3, 1, 8, p=1),
    _case(
        partition.NAME, "sin(5 x)", lambda x: np.sin(5 * x), grid=8, method=partition.NAME
    ),
    _case(
        partition.NAME,
        "1 / (x + 0.1)",
        lambda x: 1 / (x + 0.1),
        grid=16,
        method=partition.NAME,
    ),
    _case(
        partition.NAME,
        "x y",
        lambda x: x * x[..., ::-1, :],
        n=2,
        grid=4,
        method=partition.NAME,
    ),
)
QUICK_CASES = (CASES[1], CASES[4])


def run(*, quick: bool = False, progress: Progress = no_progress) -> dict[str, Any]:
    """Build, certify and measure every case."""
    cases = QUICK_CASES if quick else CASES
    rows: list[dict[str, Any]] = []
    for done, case in enumerate(cases):
        progress("certificates", done, len(cases))
        rows.append(_row(case))
    return {"theme": "tightness", "environment": environment(), "rows": rows}


def _row(case: Case) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case.name, "family": case.family}
    row |= {"K": case.grid, "p": case.p}
    row["method"] = case.options.get("method", DEFAULT)
    started = time.perf_counter()
    try:
        built = construct(case.target(), grid=case.grid, p=case.p, **case.options)
        bounds = built.certificate.bound, built.certificate.float64_bound
    except EveryformerError as error:
        return row | {"outcome": f"refused: {error}"}
    row["seconds"] = time.perf_counter() - started
    row["measured"] = measured = distance_measured(built)
    if bounds[0] is None:
        return row | {"outcome": f"no bound: {built.certificate}"}
    for name, bound in zip(("proved", "proved_float64"), bounds, strict=True):
        row[name] = None if bound is None else float(bound.value)
    return row | {"ratio": row["proved"] / measured, "outcome": "proved"}


def distance_measured(built: Built) -> float:
    """d_p(f, g) by the midpoint rule, with the same number of points in every cell.

    Where f is not a number, as x log x at 0, a point does not count.
    """
    target, p = built.target, float(built.p or math.inf)
    n, d = target.seq_len, target.d_model
    K = built.plan.cells
    per_cell = max(int(POINTS ** (1 / (n * d)) / K), 2)
    size = K * per_cell
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    total, most = 0.0, 0.0
    for start in range(0, size ** (n * d), CHUNK):
        flat = np.arange(start, min(start + CHUNK, size ** (n * d)))
        places = np.stack(np.unravel_index(flat, (size,) * (n * d)), axis=-1)
        x = low + (high - low) * ((places.reshape(-1, n, d) + 0.5) / size)
        with np.errstate(all="ignore"):
            gaps = np.abs(target(x) - built.network(x))
        gaps = gaps[np.isfinite(gaps)]
        most = max(most, float(gaps.max(initial=0.0)))
        total += float((gaps ** min(p, 64.0)).sum())
    if p == math.inf:
        return most
    volume = float(target.domain.volume(n))
    return (total / size ** (n * d) * volume) ** (1 / p)


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    above = [r["case"] for r in report["rows"] if not r.get("ratio", math.inf) <= GOAL]
    columns = {
        "case": "{case}",
        "method": "{method}",
        "K": "{K}",
        "p": "{p:g}",
        "s": "{seconds:.3g}",
        "bound": "{proved:.3g}",
        "measured": "{measured:.3g}",
        "ratio": "{told}",
    }
    rows: list[dict[str, Any]] = []
    for row in report["rows"]:
        outcome = row["outcome"].partition(":")[0]
        rows.append(row | {"told": f"{row['ratio']:.2f}" if "ratio" in row else outcome})
    title = f"Bound / measured: {len(above)} cases above {GOAL:g}"
    return table_of(title, rows, columns, left=("case", "method"))
