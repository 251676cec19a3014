"""Bounds that are nearly attained, against what is measured: none may be below it.

Functions are chosen to break a proof on parts of cells: steep between all points that are
looked at, with ends one rounding away, huge, tiny, defined in real arithmetic alone.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.partition import prove
from everyformer.certify.partition.direct import refined
from everyformer.certify.partition.lattice import Lattice, clipped
from everyformer.certify.partition.lattice_field import lattice_field
from everyformer.certify.partition.local import cell_bounds
from everyformer.construct.certificates import certify
from everyformer.errors import EveryformerError
from everyformer.numerics.outward import Interval
from everyformer.numerics.sharp import SharpArithmetic
from everyformer.targets.box import Box, Grid

Function = Callable[[Any], Any]
BELOW, ABOVE = math.nextafter(0.5, 0), math.nextafter(0.5, 1)
K = 4


def swapped(x: Any) -> Any:
    return x[..., ::-1, :]


FUNCTIONS: dict[str, Function] = {
    "steep at a border": lambda x: np.tanh(1e9 * (x - 0.5)),
    "a ramp before a border": lambda x: np.clip(1e8 * (x - 0.49999999), 0, 1),
    "kinks one rounding off": lambda x: np.abs(x - BELOW) + np.maximum(x - ABOVE, 0),
    "kinks at borders of parts": lambda x: np.abs(x - 1 / 128) + 3 * np.abs(x - 3 / 128),
    "0 at all anchors": lambda x: np.sin(2 * K * np.pi * x) * (1 + x),
    "0 at all borders of parts": lambda x: np.sin(32 * K * np.pi * x) ** 2,
    "a thin band": lambda x: np.where((x > 0.3) & (x < 0.300000001), 1e3, 0.0 * x),
    "branches that contradict": lambda x: np.where(
        x > 0.5, np.where(x < 0.5, 1e9, x), np.where(x > 0.5, -1e9, -x)
    ),
    "only real numbers tell": lambda x: np.where(x + 1e-17 > x, x, -x),
    "lost digits": lambda x: (x + 1e16) - 1e16,
    "roots of roots": lambda x: np.sqrt(np.sqrt(np.abs(x - 0.25))),
    "a pole near the face": lambda x: (x + 0.01) ** -3,
    "a saw": lambda x: x + sum(np.where(x > k / 7, -1 / 7, 0.0) for k in range(1, 7)),
}
LOST_BY_FLOAT64 = {"only real numbers tell", "lost digits"}
PLACES = [0, 0.25, BELOW, 0.5, ABOVE, 0.3 + 5e-10, 1]


def distance(network: Any, f: Function, p: Any, low: float, high: float) -> float:
    """At points in the middle of small parts; in the sup norm, at special ones too."""
    count = 8_000
    x = low + (high - low) * (np.arange(count) + 0.5) / count
    if p == math.inf:
        x = np.concatenate([x, np.array(PLACES) * (high - low) + low])
    x = np.clip(x, low, high).reshape(-1, 1, 1)
    gaps = np.abs(network(x) - f(x)).ravel()
    if p == math.inf:
        return float(gaps.max())
    return float(((high - low) * np.mean(gaps ** float(p))) ** (1 / float(p)))


SUPREMUM: tuple[Any, Any] = (ef.Partition(decay=0.5, margin=2), math.inf)
MEANS: list[tuple[Any, Any]] = [
    ("selective-shift", 2),
    ("averaging", Fraction(5, 2)),
    (ef.Partition(decay=20, margin=1), 1),
]
"""Each function meets one of them, in turn."""


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_bound_is_below_the_distance(name: str) -> None:
    f = FUNCTIONS[name]
    for method, p in (SUPREMUM, MEANS[list(FUNCTIONS).index(name) % 3]):
        built = ef.construct(ef.Target(f, 1, 1), grid=K, method=method, p=p)
        bound = built.certificate.float64_bound
        if name in LOST_BY_FLOAT64:
            assert bound is None, "what numpy computes is another function"
            continue
        assert bound is not None
        assert distance(built.network, f, p, 0, 1) <= float(bound.value) * (1 + 1e-3)


UNDEFINED: dict[str, Function] = {
    "u log u below 0": lambda x: (x - 2.0**-60) * np.log(x - 2.0**-60),
    "a root one number below 0": lambda x: np.sqrt(x - 5e-324),
    "u log u, 0 on half of it": lambda x: x + np.log(np.maximum(x - 0.5, 0)) * (x - 0.5),
}


@pytest.mark.parametrize("name", UNDEFINED)
def test_what_is_undefined_on_a_part_of_the_domain_has_no_bound(name: str) -> None:
    try:
        built = ef.construct(ef.Target(UNDEFINED[name], 1, 1), grid=K, p=2)
    except EveryformerError:
        return
    assert built.certificate.bound is None


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1e12), (-3e15, 1e15), (-7.0, 123456.789), (0.0, 2.0**-40)]
)
def test_the_bound_of_a_line_on_a_wide_domain_is_its_distance(
    low: float, high: float
) -> None:
    def line(x: Any) -> Any:
        return (x - low) / (high - low)

    for p in (4,) if low else (2,):
        built = ef.construct(ef.Target(line, 1, 1, domain=[(low, high)]), grid=K, p=p)
        real, run = built.certificate.bound, built.certificate.float64_bound
        assert real is not None
        assert run is not None
        exact = (high - low) ** (1 / p) / (2 * K) * (1 / (p + 1)) ** (1 / p)
        assert exact * (1 - 1e-9) <= float(real.value) <= float(run.value) <= exact * 1.001
        measured = distance(built.network, line, p, low, high)
        assert measured <= float(run.value) * (1 + 1e-7)


@pytest.mark.parametrize("n", [1, 2])
def test_every_cell_of_a_partition_has_a_bound_above_its_own_error(n: int) -> None:
    """E f(Y) - f by its definition: the smallest cell bound counts, not the sum."""
    cells, rng = 3, np.random.default_rng(n)
    functions: list[Function] = [
        lambda x: np.abs(x - swapped(x) / 2 - 0.2),
        lambda x: np.sqrt(np.abs(x * swapped(x) - 0.1)),
        lambda x: np.where(x > swapped(x) ** 2 + 0.1, x + 1, np.sin(9 * x)),
        lambda x: np.exp(3 * x) * swapped(x),
    ]
    for f in functions:
        program = ef.Target(f, n, 1).expression
        assert program is not None
        for D, margin in ((Fraction(3, 10), 1), (Fraction(2), 3)):
            grid = Grid(cells, n, Box((0.0,), (1.0,)))
            lattice, own = Lattice(grid, D, margin), clipped(program, grid.box)
            field = lattice_field(own, lattice)
            p = Fraction(3, 2)
            powers, sups = refined(cell_bounds(field, lattice), field, lattice, p)
            count = 300 if n == 1 else 30
            t = (np.arange(cells * count) + rng.random(cells * count)) / count
            anchors = np.arange(-margin, cells + margin + 1)
            weights = np.exp(-float(D) * (t[:, None] - anchors) ** 2)
            weights /= weights.sum(axis=1, keepdims=True)
            places = np.stack(np.meshgrid(*[anchors / cells] * n, indexing="ij"), axis=-1)
            g = own(places.reshape(-1, n, 1)).reshape(*[len(anchors)] * n, n)
            for k in range(n):
                g = np.moveaxis(np.tensordot(weights, g, axes=(1, k)), 0, k)
            x = np.stack(np.meshgrid(*[t / cells] * n, indexing="ij"), axis=-1)
            gaps = np.abs(g - program(x.reshape(-1, n, 1)).reshape(g.shape))
            shaped = gaps.reshape(*(cells, count) * n, n)
            order = (*range(0, 2 * n, 2), *range(1, 2 * n, 2), 2 * n)
            own_gaps = shaped.transpose(order).reshape(cells**n, count**n, n)
            assert (own_gaps.max(axis=1) <= sups * (1 + 1e-9) + 1e-12).all()
            means = (own_gaps ** float(p)).mean(axis=1)
            errors = (own_gaps ** float(p)).std(axis=1) / count ** (n / 2)
            assert (means - 6 * errors <= powers + 1e-12).all()


def test_shards_find_the_same_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ef.Target(lambda x: np.abs(x - swapped(x)), 2, 1)
    found: list[float] = []
    for boxes in (prove.SHARD_BOXES, 1):
        monkeypatch.setattr(prove, "SHARD_BOXES", boxes)
        built = ef.construct(target, grid=3, method=ef.Partition(decay=1, margin=2), p=2)
        assert built.certificate.bound is not None
        found.append(float(built.certificate.bound.value))
    assert found[0] == pytest.approx(found[1], rel=1e-12)


def test_weights_that_were_changed_have_a_bound_above_their_error() -> None:
    f, rng = FUNCTIONS["roots of roots"], np.random.default_rng(7)
    target, with_bound = ef.Target(f, 1, 1), 0
    for p in (Fraction(3, 2), None):
        exponent = p or math.inf
        method = ef.Partition(decay=1, margin=2)
        built = ef.construct(target, grid=K, method=method, p=exponent)
        for _ in range(6):
            arrays = {name: array.copy() for name, array in built.network.arrays()}
            names = [name for name, array in arrays.items() if np.any(array)]
            flat = arrays[str(rng.choice([*names, *["registers.prefix"] * 9]))].reshape(-1)
            place = rng.choice(np.flatnonzero(flat))
            flat[place] *= 1 + rng.choice([1e-3, -0.5, 1e-6, 0.2])
            network = built.network.with_arrays(arrays)
            bound = certify(network, target, grid=K, p=p).float64_bound
            if bound is not None:
                with_bound += 1
                measured = distance(network, f, exponent, 0, 1)
                assert measured <= float(bound.value) * (1 + 1e-3)
    assert with_bound > 3


def test_sharp_ends_enclose_sums_and_products_of_all_sizes() -> None:
    rng, sharp = np.random.default_rng(3), SharpArithmetic()
    count = 600
    whole = rng.integers(2**52, 2**53, (2, count)) * rng.choice([-1.0, 1.0], (2, count))
    sizes = rng.choice([-1074, -1000, -560, -506, -52, 0, 1, 420, 848, 900], (2, count))
    with np.errstate(over="ignore", under="ignore"):
        a, b = np.ldexp(whole, sizes - rng.integers(0, 54, (2, count)))
        near = np.nextafter(a, rng.choice([-np.inf, np.inf], count))
    for left, right in ((a, b), (a, near), (a, -near), (np.ldexp(a, -20), b)):
        x, y = (Interval(v[None], v[None]) for v in (left, right))
        for found, exact in (
            (sharp.add(x, y), Fraction.__add__),
            (sharp.sub(x, y), Fraction.__sub__),
            (sharp.mul(x, y), Fraction.__mul__),
        ):
            for low, high, u, v in zip(
                found.low[0], found.high[0], left, right, strict=True
            ):
                value = exact(Fraction(float(u)), Fraction(float(v)))
                assert low == -math.inf or Fraction(float(low)) <= value
                assert high == math.inf or value <= Fraction(float(high))
