"""The residual network that Section 5.4 compares with: built, certified, and counted."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import factorial, sqrt

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.on_cells.residual import Blocks, ResidualReading
from everyformer.certify.proof import Proof
from everyformer.construct.optimality import ratios
from everyformer.construct.residual import ResidualNetwork, ResidualPlan
from everyformer.errors import GridError
from everyformer.numerics.rationals import power_up
from everyformer.targets import centring, prefix_mean, reverse, soft_attention, sort
from everyformer.targets.box import Grid
from everyformer.verdict import Verdict

CASES = [
    (sort(2, 1), 8),
    (soft_attention(2, 2), 2),
    (ef.Target(sort(3, 1).function, 3, 1, domain=[(-1, 3)], name="wide"), 4),
]


def verdict_on(proof: Proof, eps: Fraction, p: Fraction) -> Verdict:
    """Whether d_p(f, g) <= eps, g in real arithmetic."""
    if proof.real is not None and proof.real <= eps:
        return Verdict.PROVED
    return Verdict.REFUTED if proof.lower > power_up(eps, p) else Verdict.UNKNOWN


def plan_of(target: ef.Target, K: int) -> ResidualPlan:
    return ResidualPlan(Grid(K, target.seq_len, target.domain))


@pytest.mark.parametrize(("target", "K"), CASES)
def test_it_is_the_table_in_every_cell(target: ef.Target, K: int) -> None:
    plan = plan_of(target, K)
    network = plan.build(target)
    assert (len(network.c), network.parameters) == (plan.blocks, plan.parameters)
    columns = plan.grid.all_sequences()
    centres = plan.grid.centres(columns)
    widths = np.array([float(w) for w in plan.grid.box.widths]) / K
    # Anywhere in the cell but on the ramp at its upper end.
    inside = np.random.default_rng(0).uniform(-0.5, 0.499, centres.shape)
    for x in (centres, centres + inside * widths, centres - 0.5 * widths):
        assert np.abs(network(x) - target(centres)).max() <= 1e-12
    # N K^N up to the lower order, with N = n d
    N = plan.coordinates
    assert plan.parameters == (2 * N + 1) * (K**N + 2 * N * K + 2 * N + 1)


def in_rationals(network: ResidualNetwork, z: np.ndarray) -> np.ndarray:
    """The oracle: every block, in order, on Fractions (count, N) of the unit cube."""
    as_fraction = np.vectorize(Fraction, otypes=[object])
    W, c, V = map(as_fraction, (network.W, network.c, network.V))
    for row in range(len(c)):
        z = z + np.maximum(z @ W[row] + c[row], 0)[:, None] * V[row]
    return z


@pytest.mark.parametrize(("target", "K"), [CASES[0], (CASES[2][0], 2)])
def test_what_is_read_is_what_rational_arithmetic_finds(target: ef.Target, K: int) -> None:
    network = plan_of(target, K).build(target)
    reading = ResidualReading.of(Blocks(network.W, network.c, network.V), network.grid)
    N = network.W.shape[1]
    columns = network.grid.all_sequences()
    digits = network.grid.digits(columns).reshape(-1, N)
    read = reading.values(columns, "real").centre.reshape(-1, N)
    length = [1 - K * ramp for ramp in reading.plateaus.ramps.flat]  # of a cell, at least
    rng = np.random.default_rng(0)
    for share in (0, 1, *rng.random(2)):
        inside = Fraction(share) * (1 - Fraction(K, 2**30))
        z = np.array([[(k + inside) / K for k in row] for row in digits], dtype=object)
        assert (in_rationals(network, z) == read).all()
    assert all(0 < one < 1 for one in length)
    # On the ramps it is anything, inside the clamp.
    last = Fraction(1, 2**31)
    z = np.array([[Fraction(k + 1, K) - last for k in row] for row in digits], dtype=object)
    found = in_rationals(network, z)
    assert (found != read).any()
    low, high = zip(*reading.ranges, strict=True)
    assert (found >= min(low)).all()  # type: ignore[type-var]
    assert (found <= max(high)).all()  # type: ignore[type-var]


@pytest.mark.parametrize("p", [1, 2, 4])
def test_the_bound_is_the_integral(p: int) -> None:
    """On a cell |x - c|^p has the mean (1/2K)^p / (p + 1), and there are two entries."""
    target, K = reverse(2, 1), 8
    found = plan_of(target, K).build(target).prove(target, Fraction(p))
    exact = (2 / (p + 1)) ** (1 / p) / (2 * K)
    assert found.real is not None
    ramps = (2 * 2 * 7 / 2**30) ** (1 / p)
    assert exact <= found.real.value <= (exact**p + ramps**p) ** (1 / p) * 1.2
    if p == 2:
        assert float(found.real.value) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize(("target", "K"), CASES)
def test_it_is_proved_as_the_table_is(target: ef.Target, K: int) -> None:
    network = plan_of(target, K).build(target)
    found = network.prove(target, Fraction(2)).real
    assert found is not None
    assert found.is_consistent()
    assert network.distance_sampled(target, 2) <= found.value
    if target.name == "wide":  # the same table, by a Transformer
        built = ef.construct(target, grid=K, method="averaging").certificate.bound
        assert built is not None
        assert float(found.value) == pytest.approx(float(built.value), rel=0.01)


def test_a_declared_function_is_proved_under_its_declaration() -> None:
    def untraceable(x: np.ndarray) -> np.ndarray:
        return np.array([[float(v) for v in row] for row in x.reshape(-1, 2)]).reshape(
            x.shape
        )

    target = ef.Target(untraceable, 2, 1, lipschitz=1, name="as declared")
    found = plan_of(target, 4).build(target).prove(target, Fraction(2))
    assert found.real is not None
    assert [str(one.kind) for one in found.hypotheses] == [
        "declared modulus",
        "values as computed",
    ]


K, N = CASES[0][1], 2
VALUES = 2 * N * K + 1
Change = Callable[[ResidualNetwork], None]


def changed(name: str, at: int | tuple[int, ...], value: float) -> Change:
    def change(network: ResidualNetwork) -> None:
        getattr(network, name)[at] = value

    return change


TAMPERED: dict[str, Change] = {
    "a value is gone": changed("V", VALUES + 20, 0.0),
    "the last value is gone": changed("V", VALUES + K**N - 1, 0.0),
    "a threshold is lower": changed("c", VALUES + 3, 1e9),
    "u differs": changed("W", (VALUES + 3, 0), 1.001),
    "a cell is not rounded": changed("V", (0, 0), -0.5),
    "a cell is not moved away": changed("V", (1, 0), 0.0),
    "a quantiser reads another": changed("W", (0, 1), 0.1),
    "no lift": changed("c", VALUES - 1, 0.0),
    "the lift reads": changed("W", (VALUES - 1, 0), 1.0),
    "no clamp above": changed("V", VALUES + K**N, 0.0),
    "the clamp is too wide": changed("c", VALUES + K**N, -1e9),
    "not a number": changed("c", 0, float("nan")),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_network_is_not_proved(what: str) -> None:
    target = CASES[0][0]
    network = plan_of(target, K).build(target)
    eps, p = Fraction(network.prove(target, Fraction(2)).real.value), Fraction(2)  # type: ignore[union-attr]
    assert verdict_on(network.prove(target, p), eps, p) is Verdict.PROVED
    TAMPERED[what](network)
    found = network.prove(target, p)
    assert verdict_on(found, eps, p) is not Verdict.PROVED
    if what == "the last value is gone":
        assert verdict_on(found, eps, p) is Verdict.REFUTED
        assert sqrt(found.lower) <= network.distance_sampled(target, 2, 2**14) * 1.1


def test_fewer_blocks_are_not_proved() -> None:
    target = CASES[0][0]
    network = plan_of(target, K).build(target)
    less = replace(network, W=network.W[:-1], c=network.c[:-1], V=network.V[:-1])
    found = less.prove(target, Fraction(2))
    assert found.real is None
    assert "there are 100 blocks, not 101" in str(found.obstacles[0])


def test_random_tamperings_are_never_proved_falsely() -> None:
    """What is PROVED is true at random points, and so is a lower bound."""
    target, p = CASES[0][0], Fraction(2)
    network = plan_of(target, 4).build(target)
    eps = network.prove(target, p).real.value * Fraction(11, 10)  # type: ignore[union-attr]
    rng, verdicts = np.random.default_rng(0), list[Verdict]()
    for _ in range(40):
        other = replace(network, W=network.W.copy(), c=network.c.copy(), V=network.V.copy())
        array = getattr(other, rng.choice(["W", "c", "V"]))
        at = tuple(rng.integers(size) for size in array.shape)
        array[at] += rng.choice([1e-9, 1e-3, 0.1, 3.0]) * rng.choice([-1, 1])
        found = other.prove(target, p)
        verdict = verdict_on(found, eps, p)
        verdicts.append(verdict)
        distance = other.distance_sampled(target, 2, 2**13)
        if verdict is Verdict.PROVED:
            assert distance <= float(eps)
        assert sqrt(found.lower) <= distance * 1.05
    assert {*verdicts} == {*Verdict}


def test_the_sampled_distance_falls_with_the_grid() -> None:
    target = sort(2, 1)
    found = [plan_of(target, K).build(target).distance_sampled(target, 2) for K in (4, 16)]
    assert found[0] / found[1] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("target", "K", "said"),
    [
        (prefix_mean(5, 1), 2, "n d = 5"),
        (prefix_mean(2, 2), 32, "1,048,576"),
        (prefix_mean(1, 1), 512, "K <= 256"),
        (prefix_mean(2, 1), 3, "not a power of two"),
    ],
)
def test_what_is_not_built_says_so(target: ef.Target, K: int, said: str) -> None:
    with pytest.raises(GridError, match=said):
        plan_of(target, K).build(target)


@pytest.mark.parametrize("target", [centring(2, 1), centring(4, 1), prefix_mean(2, 2)])
def test_both_are_optimal_in_order(target: ef.Target) -> None:
    """Ratios tend to 2 (17 d + 6)/d and to (2 n d + 1)/(n d), times n! without symmetry."""
    n, d = target.seq_len, target.d_model
    last = ratios(target)[-1]
    orders = factorial(n) if target.equivariant else 1
    assert float(last.transformer) == pytest.approx(2 * (17 * d + 6) / d, rel=0.03)
    assert float(last.residual) == pytest.approx(
        orders * (2 * n * d + 1) / (n * d), rel=0.03
    )


def test_the_symmetry_pays_from_four_tokens_on() -> None:
    for n in (2, 3, 4, 5):
        last = ratios(centring(n, 1))[-1]
        assert (last.residual > last.transformer) == (n >= 4)


def test_a_factorial_beyond_float64_is_not_a_number() -> None:
    shown = ratios(centring(200, 2))[-1].to_json()
    assert shown["residual_over_lower_bound"] is None
    assert shown["transformer_over_lower_bound"] is not None
