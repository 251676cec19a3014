"""Compiled programs: sizes, proved and measured errors, seconds to build and to verify.

f is evaluated in extended precision (64 bits) at random points: a quarter each uniform,
rounded to corners, near the lower ends, and with all tokens close to each other; the point
where the gap is largest once more, in balls of 128 bits. Bounds of exact programs are below
what float64 itself loses on f.
"""

import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

from everyformer.bench.kept import Kept, Row
from everyformer.bench.tables import table_of
from everyformer.certify.verify import verify
from everyformer.construct.compile.method import Compile, Variant
from everyformer.construct.pipeline import construct
from everyformer.errors import EveryformerError
from everyformer.numerics.balls import BallArithmetic
from everyformer.numerics.expression import Expression, Float64
from everyformer.progress import Progress, no_progress
from everyformer.targets import gallery
from everyformer.targets.target import Target

POINTS, LARGE_POINTS = 100_000, 1000
"""At n <= 8, and above."""

MOST_LINES = 500_000_000
"""Lines of f times points: longer programs are measured at fewer points, but never at less
than"""
FEWEST_POINTS = 16

CHUNK = 20_000_000
"""Numbers of all lines of f that may be held at once."""

Function = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A function at one size, and the tolerances it is compiled for."""

    name: str
    function: Function
    n: int
    d: int
    tols: tuple[float, ...] = (1e-6,)
    variant: Variant = "odd-even"

    @property
    def method(self) -> Compile:
        """How it is compiled."""
        return Compile(self.variant)

    @property
    def target(self) -> Target:
        """The function as a target."""
        return Target(self.function, self.n, self.d, name=self.name)


def ordered(x: np.ndarray) -> np.ndarray:
    """Every coordinate sorted over the tokens."""
    return np.sort(x, axis=-2)


def mlp(x: np.ndarray) -> np.ndarray:
    """Eight hidden units with tanh, and the mean of all tokens."""
    d = x.shape[-1]
    first = np.arange(d * 8).reshape(d, 8) % 7 / 8 - 0.375
    second = np.arange(8 * d).reshape(8, d) % 5 / 8 - 0.25
    return np.tanh(x @ first) @ second + x.mean(axis=-2, keepdims=True)


def product(x: np.ndarray) -> np.ndarray:
    """x1 x2 + x3, x2, x3."""
    a, b, c = (x[..., i] for i in range(3))
    return np.stack([a * b + c, b, c], axis=-1)


def soft_attention(x: np.ndarray) -> np.ndarray:
    """Attention by distance."""
    gaps = x[..., :, None, :] - x[..., None, :, :]
    weights = np.exp(-(gaps**2).sum(axis=-1))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ x


def dot_attention(x: np.ndarray) -> np.ndarray:
    """Attention by inner products, scaled, with the maximum subtracted."""
    scores = x @ np.swapaxes(x, -1, -2) / 2
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ x


def normalise(x: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 over the coordinates, with 1/128 under the root."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1 / 128)


def transformer_block(x: np.ndarray) -> np.ndarray:
    """A pre-LN block: norm, attention with four keys, norm, tanh MLP of 16, skips."""
    d = x.shape[-1]
    rng = np.random.default_rng(0)

    def weights(rows: int, columns: int) -> np.ndarray:
        return np.round(rng.uniform(-1, 1, (rows, columns)) * 8) / 16

    query, key, value = weights(d, 4), weights(d, 4), weights(d, d)
    first, second = weights(d, 16), weights(16, d)
    z = normalise(x)
    scores = np.exp((z @ query) @ np.swapaxes(z @ key, -1, -2) / 2)
    x = x + (scores / scores.sum(axis=-1, keepdims=True)) @ (z @ value)
    return x + np.tanh(normalise(x) @ first) @ second


LADDER = (1e-2, 1e-4, 1e-6)
CASES = (
    Case("centring", gallery.centring(8, 2).function, 8, 2),
    Case("shift", gallery.shift(8, 2).function, 8, 2),
    Case("prefix mean", gallery.prefix_mean(8, 2).function, 8, 2),
    Case("max - x", gallery.distance_to_maximum(8, 2).function, 8, 2),
    Case("sort", ordered, 8, 2),
    Case("sort, log-depth", ordered, 8, 2, variant="log-depth"),
    Case("tanh MLP + mean", mlp, 8, 4),
    Case("x1 x2 + x3", product, 8, 3, (*LADDER, 1e-10)),
    Case("soft attention", soft_attention, 8, 1, (*LADDER, 1e-10)),
    Case("dot attention", dot_attention, 8, 4),
    Case("normalise", normalise, 8, 4, (*LADDER, 1e-10)),
    Case("pre-LN block", transformer_block, 5, 8, (1e-2, 1e-4, 2e-6)),
    Case("centring", gallery.centring(64, 8).function, 64, 8),
    Case("prefix mean", gallery.prefix_mean(64, 8).function, 64, 8),
    Case("max - x", gallery.distance_to_maximum(64, 8).function, 64, 8),
    Case("sort", ordered, 64, 8),
    Case("sort, log-depth", ordered, 64, 8, variant="log-depth"),
    Case("soft attention", soft_attention, 64, 8, LADDER),
    Case("dot attention", dot_attention, 64, 8),
    Case("normalise", normalise, 64, 8, LADDER),
    Case("pre-LN block", transformer_block, 64, 8, (1e-2, 1e-4, 2e-6)),
)
LARGEST_CASES = (
    Case("sort", ordered, 256, 8),
    Case("sort, log-depth", ordered, 256, 8, variant="log-depth"),
    Case("soft attention", soft_attention, 256, 8),
)
QUICK_CASES = (CASES[0], CASES[7])
GALLERY = (
    "centring", "soft_attention", "distance_to_maximum", "smooth_rank", "smooth_bump",
    "sort", "reverse", "first_token", "prefix_mean", "shift",
)  # fmt: skip


def run(
    *,
    quick: bool = False,
    progress: Progress = no_progress,
    kept: Kept | None = None,
) -> dict[str, Any]:
    """Compile, verify and measure every case, and the targets of the gallery.

    Args:
        quick: Two cases.
        progress: Is told what is done.
        kept: Holds the rows of a run that was stopped.
    """
    kept = kept or Kept()
    chosen = QUICK_CASES if quick else (*CASES, *_gallery(), *LARGEST_CASES)
    cases = [(case, tol) for case in chosen for tol in case.tols]
    rows: list[Row] = []
    for done, (case, tol) in enumerate(cases):
        progress(f"compile: {case.name}", done, len(cases))
        about = {"case": case.name, "n": case.n, "d": case.d, "tol": tol}
        rows.append(kept.row(about, partial(row_of, case.target, tol, case.method)))
    return {
        "theme": "compile",
        **kept.provenance,
        "rows": rows,
    }


def _gallery() -> Iterator[Case]:
    """The targets of the gallery, as cases."""
    for name in GALLERY:
        target = getattr(gallery, name)(4, 2)
        yield Case(target.name, target.function, 4, 2)


def row_of(target: Target, tol: float, method: Compile, *, measure: bool = True) -> Row:
    """One function at one tolerance; seconds are those of one core."""
    n, d = target.seq_len, target.d_model
    row: Row = {"case": target.name, "n": n, "d": d, "tol": tol}
    started = time.process_time()
    f = target.expression
    if f is None:
        return row | {"outcome": f"not traced: {target.untraceable}"}
    row |= {"lines": len(f.nodes), "trace_s": time.process_time() - started}
    started = time.process_time()
    try:
        built = construct(target, tol=tol, method=method)
    except EveryformerError as error:
        return row | {"outcome": f"refused: {error}"}
    row["construct_s"] = time.process_time() - started
    spec, cost, said = built.network.architecture, built.cost, built.certificate
    row |= {"blocks": cost.blocks, "width": spec.width, "prefix": spec.num_prefix}
    row |= {"parameters": cost.parameters, "outcome": said.verdict.name}
    for name, bound in (("proved", said.bound), ("proved_float64", said.float64_bound)):
        row[name] = None if bound is None else float(bound.value)
    with tempfile.TemporaryDirectory() as folder:
        built.save(folder)
        started = time.process_time()
        row["verified"] = verify(folder).verdict.name
        row["verify_s"] = time.process_time() - started
    row["peak_bytes"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if not measure:
        return row
    points = POINTS if n <= 8 else LARGE_POINTS
    points = max(FEWEST_POINTS, min(points, MOST_LINES // len(f.nodes)))
    most, worst = largest_gap(f, built.network, target, points)
    return row | {"points": points, "measured": most, "measured_in_balls": worst}


def largest_gap(
    f: Expression, network: Function, target: Target, points: int
) -> tuple[float, float]:
    """The largest |f - g| of a float64 run of g, at random points of four kinds.

    Also that of the point where it is, with f in balls.
    """
    most, worst, chunk = 0.0, 0.0, max(1, CHUNK // len(f.nodes))
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    for x in random_points(points, target.seq_len, target.d_model, chunk):
        inside = np.clip(low + (high - low) * x, low, high)
        run = network(inside)
        gap = np.abs(extended(f, inside) - run).max(axis=(-2, -1))
        k = int(gap.argmax())
        if float(gap[k]) > most:
            most, worst = float(gap[k]), in_balls(f, inside[k], run[k])
    return most, worst


def in_balls(f: Expression, x: np.ndarray, run: np.ndarray) -> float:
    """At least every |f(x) - run|, with f in balls of 128 bits."""
    balls, place = BallArithmetic(128), x.tolist()
    with balls.working():
        rows = f.run(balls, lambda j, i: balls.box(place[j][i], place[j][i]))
        gaps = [
            balls.ends(balls.abs(balls.sub(value, balls.box(given, given))))[1]
            for row, said in zip(rows, run.tolist(), strict=True)
            for value, given in zip(row, said, strict=True)
        ]
    return max(gaps)


def random_points(count: int, n: int, d: int, chunk: int) -> Iterator[np.ndarray]:
    """Points of the unit cube: uniform, corners, near 0, tokens close to each other."""
    rng = np.random.default_rng(0)
    for start in range(0, count, chunk):
        x = rng.random((min(chunk, count - start), n, d))
        kind = rng.integers(0, 4, len(x))
        x[kind == 1] = np.round(x[kind == 1])
        x[kind == 2] **= 8
        close = x[kind == 3]
        x[kind == 3] = np.clip(close[:, :1] + 0.01 * (close - 0.5), 0.0, 1.0)
        yield x


def extended(f: Expression, x: np.ndarray) -> np.ndarray:
    """f in numpy's longest numbers, constants included."""
    with np.errstate(all="ignore"):
        rows = f.run(_Extended(), lambda j, i: x[..., j, i].astype(np.longdouble))
    batch = x.shape[:-2]
    return np.stack(
        [np.stack([np.broadcast_to(v, batch) for v in row], axis=-1) for row in rows],
        axis=-2,
    )


class _Extended(Float64):
    """The operations of expressions in extended precision."""

    @staticmethod
    def constant(value: Any) -> np.longdouble:
        return np.longdouble(value.numerator) / np.longdouble(value.denominator)

    @staticmethod
    def where(c: Any, a: Any, b: Any) -> Any:
        return np.where(c > 0, a, b)

    @staticmethod
    def pow(base: Any, exponent: int) -> Any:
        return np.power(base, np.longdouble(exponent))


def table(report: dict[str, Any]) -> Table:
    """The report for the terminal."""
    columns = {
        "f": "{case}",
        "n, d": "{n}, {d}",
        "tol": "{tol:g}",
        "lines": "{lines:,}",
        "blocks": "{blocks:,}",
        "width": "{width:,}",
        "prefix": "{prefix:,}",
        "parameters": "{parameters:,}",
        "proved": "{proved:.2g}",
        "float64": "{proved_float64:.2g}",
        "measured": "{measured:.2g}",
        "build s": "{build_s:.1f}",
        "verify s": "{verify_s:.1f}",
    }
    rows: list[Row] = []
    for row in report["rows"]:
        if "proved" in row:
            rows.append(row | {"build_s": row["trace_s"] + row["construct_s"]})
        else:
            rows.append(row | {"failed": row["outcome"]})
    title = "Compiled programs, in the supremum; measured <= proved (float64)"
    return table_of(title, rows, columns, left=["f"], head=3, longest=60)
