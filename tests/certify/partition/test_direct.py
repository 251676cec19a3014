"""g evaluated on parts of cells: bounds hold on every part, and are close to the error."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certify.partition.partition_map import lattice, waves

from everyformer.certify.partition import direct as partition_direct
from everyformer.certify.partition.average import Average
from everyformer.certify.partition.direct import (
    Known,
    PartBounds,
    Shape,
    by_curves,
    by_range,
    by_slopes,
    part_bounds,
    refined,
)
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.lattice_field import LatticeField, Slab, lattice_field
from everyformer.certify.partition.local import cell_bounds
from everyformer.certify.partition.samples import Samples
from everyformer.construct.partition.choice import TracedBounds, field_or_clipped
from everyformer.targets.gallery import sort
from everyformer.targets.target import Target

TWO = Fraction(2)
Function = Callable[[np.ndarray], np.ndarray]


def samples_of(field: LatticeField) -> Samples:
    assert field.samples is not None
    return field.samples


def errors_on_parts(
    function: Function, partition: Lattice, parts: int, points: np.ndarray
) -> np.ndarray:
    """|g - f| at the same points of every part, from 0 to 1 in it: (parts.., points, N).

    In float64, entry by entry of the sequence; f on the margin is what the function says.
    """
    K, N, m = partition.grid.cells, partition.size, partition.margin
    n, d = partition.grid.seq_len, partition.grid.d_model
    numbers = np.arange(-m, K + m + 1)
    t = ((np.arange(K * parts)[:, None] + points) / parts).ravel()
    w = np.exp(-float(partition.D) * np.square(t[:, None] - numbers))
    w /= w.sum(axis=1, keepdims=True)
    lows = np.tile(np.array(partition.grid.box.lows), n)
    steps = np.array([float(h) for h in partition.steps])

    def grid(places: np.ndarray) -> np.ndarray:
        axes = [lows[k] + steps[k] * places for k in range(N)]
        x = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        return function(x.reshape(-1, n, d)).reshape(x.shape)

    g = grid(numbers)
    for _ in range(N):
        g = np.moveaxis(np.tensordot(w, g, axes=(1, 0)), 0, -2)
    return np.abs(g - grid(t))


def worst_on_parts(
    function: Function, partition: Lattice, parts: int, count: int = 5
) -> np.ndarray:
    """The largest |g - f| found in each part, ends included: (K^N, parts^N, N)."""
    K, N = partition.grid.cells, partition.size
    gaps = errors_on_parts(function, partition, parts, np.linspace(0, 1, count))
    shaped = gaps.reshape(*(K, parts, count) * N, N)
    worst = shaped.max(axis=tuple(range(2, 3 * N, 3)))
    order = (*range(0, 2 * N, 2), *range(1, 2 * N, 2), 2 * N)
    return worst.transpose(order).reshape(K**N, parts**N, N)


def distances_sampled(function: Function, partition: Lattice) -> tuple[float, float]:
    """d_2 by a Gauss rule on parts of cells, and the largest |g - f| at its nodes."""
    parts = 8 if partition.size == 1 else 2
    nodes, weights = np.polynomial.legendre.leggauss(8 if partition.size == 1 else 5)
    gaps = errors_on_parts(function, partition, parts, (nodes + 1) / 2)
    total = np.square(gaps).sum(axis=-1)
    own = np.tile(weights / 2, partition.grid.cells * parts) / parts
    for h in partition.steps:
        total = np.tensordot(total, own, axes=(0, 0)) * float(h)
    return math.sqrt(float(total)), float(gaps.max())


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(3 * (x - x.max(axis=-2, keepdims=True)))
    return e / e.sum(axis=-2, keepdims=True)


def larger(x: np.ndarray) -> np.ndarray:
    return np.where(x >= x.max(axis=-2, keepdims=True), 1.0, 0.0)


@dataclass(frozen=True)
class Case:
    """A function, its domain, K, and bound over measured before g was evaluated.

    Attributes:
        before: For p = 2 and p = infinity, D = 2 and m = 2; None where it was refused.
    """

    function: Function
    tokens: int
    domain: tuple[float, float]
    K: int
    before: tuple[float, float] | None


UNIT = (0.0, 1.0)
CASES: dict[str, Case] = {
    "x^2": Case(lambda x: x**2, 1, UNIT, 16, (1.79, 1.06)),
    "sin 3x": Case(lambda x: np.sin(3 * x), 1, UNIT, 16, (1.87, 1.27)),
    "exp 4x": Case(lambda x: np.exp(4 * x), 1, UNIT, 8, (3.12, 2.27)),
    "1/(x^2 + 0.1)": Case(lambda x: 1 / (x**2 + 0.1), 1, (-1.0, 1.0), 16, (2.57, 1.53)),
    "sqrt x": Case(np.sqrt, 1, UNIT, 16, None),
    "|x - 1/3|": Case(lambda x: np.abs(x - 1 / 3), 1, UNIT, 16, (3.21, 1.12)),
    "where, a kink": Case(lambda x: np.where(x > 0.5, x**2, x / 2), 1, UNIT, 16, None),
    "where, a jump": Case(lambda x: np.where(x > 0.3, x + 1, x), 1, UNIT, 16, None),
    "where, the larger": Case(larger, 2, UNIT, 8, None),
    "softmax": Case(softmax, 2, UNIT, 16, (3.60, 1.77)),
    "std": Case(lambda x: x - x.std(axis=-2, keepdims=True), 2, UNIT, 16, None),
    "sort": Case(lambda x: np.sort(x, axis=-2), 2, UNIT, 16, (8.10, 1.97)),
    "x_1 x_2": Case(lambda x: x * x[..., ::-1, :], 2, UNIT, 8, (2.07, 1.04)),
}


@pytest.mark.rows(6)
@pytest.mark.parametrize("name", CASES)
def test_bounds_are_close_to_what_is_measured(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    case = CASES[name]
    target = Target(case.function, case.tokens, 1, domain=[case.domain])
    partition = lattice(target, case.K, 2, 2)
    assert target.expression is not None
    field, is_clipped = field_or_clipped(target.expression, partition)
    low, high = case.domain

    def function(x: np.ndarray) -> np.ndarray:
        return case.function(np.clip(x, low, high) if is_clipped else x)

    measured = distances_sampled(function, partition)
    old = cell_bounds(field, partition)
    for p, sampled, k in ((TWO, measured[0], 0), (None, measured[1], 1)):
        bound = float(
            TracedBounds(target.expression, p).choices([partition])[0].bound.value
        )
        record_property(f"bound over measured, p = {p}", bound / sampled)
        assert sampled <= bound <= 1.6 * sampled
        assert np.isfinite(old).all() == (case.before is not None)
        if case.before is not None:
            assert bound <= case.before[k] * sampled


def test_what_nearly_cancels_needs_small_parts() -> None:
    """g = x_1 x_2 up to 6e-5 for D = 1, and both bend by far more than their difference."""
    target = Target(lambda x: x * x[..., ::-1, :], 2, 1)
    partition = lattice(target, 4, 1, 2)
    assert target.expression is not None
    sampled, _ = distances_sampled(target.function, partition)
    (choice,) = TracedBounds(target.expression, TWO).choices([partition])
    assert sampled <= float(choice.bound.value) <= 1.5 * sampled


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=4, max_size=4),
    st.sampled_from(["smooth", "kink", "root", "jump"]),
    st.integers(2, 7),
    st.sampled_from(["1/2", "3/4", "1", "2", "3", "6"]),
    st.integers(1, 4),
)
def test_random_targets_on_every_part(
    numbers: list[float], kind: str, K: int, D: str, m: int
) -> None:
    a, b, c, d = numbers
    rough: dict[str, Function] = {
        "smooth": lambda s: np.exp(c * s),
        "kink": lambda s: np.abs(s - d),
        "root": lambda s: np.sqrt(np.abs(s - d)),
        "jump": lambda s: np.where(s > d, s, c),
    }

    def function(x: np.ndarray) -> np.ndarray:
        other = x[..., ::-1, :]
        return a * np.sin(b * x) + rough[kind](x + other * c)

    target = Target(function, 2, 1, domain=[(-1.0, 1.5)])
    assert target.expression is not None
    partition = lattice(target, K, D, m)
    field = lattice_field(target.expression, partition, boxes=1024)
    found = part_bounds(samples_of(field), partition, TWO)
    assert found is not None
    worst = worst_on_parts(function, partition, samples_of(field).fine, 3)
    assert (worst <= found.sups * (1 + 1e-9) + 1e-11).all()
    assert (found.means <= found.sups).all()
    nodes, weights = np.polynomial.legendre.leggauss(16)  # with 4, D = 6 is 20 % off
    gaps = errors_on_parts(function, partition, 1, (nodes + 1) / 2)
    squares = np.square(gaps).reshape(K, 16, K, 16, 2)
    mean = np.einsum("iajbe,a,b->ije", squares, weights / 2, weights / 2)
    powers, _ = refined(cell_bounds(field, partition), field, partition, TWO)
    if kind == "smooth":  # a Gauss rule is off at kinks
        assert (mean.reshape(-1, 2) <= powers * 1.01 + 1e-11).all()


@pytest.mark.parametrize("D", ["1/2", "1", "3"])
def test_a_square_against_arb(D: str) -> None:
    """g - f of x^2 in balls of 200 bits, at the ends and in the middle of every part."""
    target = Target(lambda x: x**2, 1, 1)
    assert target.expression is not None
    K, m, decay = 4, 2, Fraction(D)
    partition = lattice(target, K, D, m)
    samples = samples_of(lattice_field(target.expression, partition))
    found = part_bounds(samples, partition, None)
    assert found is not None
    sups = found.sups.reshape(-1)
    anchors = [Fraction(k, K) for k in range(-m, K + m + 1)]
    with flint.ctx.workprec(200):
        for k, bound in enumerate(sups.tolist()):
            errors: list[flint.arb] = []
            for t in (Fraction(2 * k + j, 2 * len(sups)) for j in range(3)):
                powers = [-decay * ((t - v) * K) ** 2 for v in anchors]
                w = [
                    flint.arb(flint.fmpq(a.numerator, a.denominator)).exp() for a in powers
                ]
                squares = [flint.fmpq(v.numerator, v.denominator) ** 2 for v in anchors]
                top = sum((a * b for a, b in zip(w, squares, strict=True)), flint.arb(0))
                own = flint.fmpq(t.numerator, t.denominator) ** 2
                errors.append(abs(top / sum(w, flint.arb(0)) - own))
            assert all(error <= bound for error in errors)
    true = max(worst_on_parts(lambda x: x**2, partition, 8, 9).ravel())
    assert sups.max() <= 1.05 * true


def one_part(value: float, slope: float, bend: float) -> Average:
    """g with these at the centre of one part."""
    return Average(np.array([value]), np.array([[slope]]), np.array([[bend]]), 0.0, 0.0)


def known(slopes: tuple[float, float], curve: float, reach: tuple[float, float]) -> Known:
    """f with f(c) = 0 and f'(c) = 0 on one part."""

    def ends(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([low]), np.array([high])

    zero = np.zeros((1, 1))
    around = np.array([[slopes[0]]]), np.array([[slopes[1]]])
    return Known(ends(*reach), around, np.array([[curve]]), ends(0, 0), (zero, zero))


def test_each_way_is_the_formula_of_its_lemma() -> None:
    """eta = 1/4, and exact numbers: each is attained by a function up to its sign."""
    shape, g = Shape(2, 2), one_part(1.0, 0.5, 0.0)
    f = known((-2.0, 2.0), 8.0, (-0.25, 0.5))
    curved, slanted, ranged = (way(g, f, shape) for way in (by_curves, by_slopes, by_range))
    # 1 + y/2 - 4 y^2 by curves; 1 + y/2 + 2|y| by slopes; 1 + y/2 - [-1/4, 1/2].
    assert curved[0] == pytest.approx(1 + 1 / 8 + 8 / 32)
    assert slanted[0] == pytest.approx(1 + 1 / 8 + 2 / 4)
    assert ranged[0] == pytest.approx(1.25 + 1 / 8)
    line = math.sqrt(1 + 1 / 64 / 3)
    assert curved[1] == pytest.approx(line + 8 / 32 / math.sqrt(5))
    assert slanted[1] == pytest.approx(line + 2 / 4 / math.sqrt(3))
    bent = by_curves(replace(g, bends=np.array([[8.0]])), f, shape)
    assert bent[0] == pytest.approx(1 + 1 / 8 + 16 / 32)
    for way in (by_curves, by_slopes, by_range):
        with np.errstate(invalid="ignore"):
            unknown = way(g, known((-np.inf, np.inf), np.inf, (-np.inf, np.inf)), shape)
        assert not np.isfinite(unknown).any()


def bounds_of(target: Target, partition: Lattice) -> tuple[PartBounds, np.ndarray]:
    assert target.expression is not None
    samples = samples_of(lattice_field(target.expression, partition, boxes=64))
    found = part_bounds(samples, partition, TWO)
    assert found is not None
    return found, worst_on_parts(target, partition, samples.fine)


@pytest.mark.parametrize("dropped", ["values", "bends", "curves", "ranges"])
def test_nothing_can_be_left_out(dropped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one of its terms the bound is false somewhere, and this is noticed."""
    jump = dropped == "ranges"
    target = (
        Target(lambda x: np.where(x > 0.372, 1.0, 0.0), 1, 1)
        if jump
        else Target(lambda x: np.sin(9 * x), 1, 1)
    )
    partition = lattice(target, 3, 12, 2)
    own = partition_direct.average
    monkeypatch.setattr(partition_direct, "CLOSE", 0.0)

    def without(*args: object) -> Average:
        g = own(*args)  # pyright: ignore[reportArgumentType]
        if dropped == "values":
            return replace(g, values=g.values * 0.5)
        return replace(g, bends=0 * g.bends) if dropped in {"bends", "curves"} else g

    def flat(cls: type[Known], samples: Samples, e: int) -> Known:
        f = read(samples, e)
        if dropped == "curves":
            f = replace(f, curves=0 * f.curves)
        return replace(f, range=f.centre) if dropped == "ranges" else f

    found, worst = bounds_of(target, partition)
    assert (worst <= found.sups + 1e-12).all()
    read = Known.of
    monkeypatch.setattr(partition_direct, "average", without)
    monkeypatch.setattr(Known, "of", classmethod(flat))
    false, _ = bounds_of(target, partition)
    assert (worst > false.sups + 1e-12).any()


def test_a_slab_has_the_bounds_of_its_cells() -> None:
    target = Target(lambda x: np.sqrt(x.std(axis=-2, keepdims=True) + x * x), 2, 1)
    assert target.expression is not None
    partition = lattice(target, 6, 2, 2)
    whole = part_bounds(
        samples_of(lattice_field(target.expression, partition)), partition, TWO
    )
    part = lattice_field(target.expression, partition, slab=Slab(3, 6, 6))
    some = part_bounds(samples_of(part), partition, TWO)
    assert whole is not None
    assert some is not None
    assert samples_of(part).rows == (1, 4)
    cells = whole.sups.reshape(6, 6, -1, 2)[1:4].reshape(some.sups.shape)
    assert np.allclose(cells, some.sups, rtol=1e-12, atol=0)


def test_what_is_too_much_is_left_to_the_other_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = sort(2)
    assert target.expression is not None
    partition = lattice(target, 8, 2, 2)
    field = lattice_field(target.expression, partition)
    monkeypatch.setattr(partition_direct, "MAX_WORK", 2**11)
    assert part_bounds(samples_of(field), partition, None) is None
    old = cell_bounds(field, partition)
    assert refined(old, field, partition, None)[1] is old
    small = Target(lambda x: x, 1, 1, domain=[(0.0, 1e-130)])
    assert small.expression is not None
    narrow = lattice(small, 4, 2, 2)
    own = samples_of(lattice_field(small.expression, narrow))
    assert part_bounds(own, narrow, None) is None


@pytest.mark.parametrize("factor", [1e-310, 1e-160, 1e150, 1e306])
def test_values_near_the_ends_of_float64(factor: float) -> None:
    target = Target(lambda x: x * x * factor, 1, 1)
    assert target.expression is not None
    partition = lattice(target, 4, 2, 2)
    for p in (TWO, None) if factor < 1e154 else (None,):  # squares must not overflow
        bound = TracedBounds(target.expression, p)
        found = bound.choices([partition])[0].bound.value
        true = distances_sampled(lambda x: x * x, partition)[0 if p else 1]
        assert found >= Fraction(true) * Fraction(factor) * Fraction(999, 1000)


def test_anchors_where_f_is_unknown_give_no_bound() -> None:
    target = Target(lambda x: np.sqrt(x + 0.1), 1, 1)
    assert target.expression is not None
    partition = lattice(target, 8, 1, 2)
    found = part_bounds(
        samples_of(lattice_field(target.expression, partition)), partition, TWO
    )
    assert found is not None
    assert np.isposinf(found.sups).all()
    assert np.isposinf(found.means).all()


def test_three_tokens() -> None:
    target = waves(3)
    assert target.expression is not None
    partition = lattice(target, 4, "3/2", 1)
    samples = samples_of(lattice_field(target.expression, partition, boxes=2**12))
    found = part_bounds(samples, partition, Fraction(3))
    assert found is not None
    worst = worst_on_parts(target, partition, samples.fine, 3)
    assert (worst <= found.sups + 1e-12).all()
    assert found.sups.max() <= 3 * worst.max()
