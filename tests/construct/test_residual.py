"""The residual network that Section 5.4 compares with: built, counted, and in the table."""

from math import factorial

import numpy as np
import pytest

import everyformer as ef
from everyformer.construct.optimality import ratios
from everyformer.construct.residual import ResidualPlan
from everyformer.errors import GridError
from everyformer.targets import centring, prefix_mean, soft_attention, sort
from everyformer.targets.box import Grid

CASES = [
    (sort(2, 1), 8),
    (soft_attention(2, 2), 2),
    (ef.Target(sort(3, 1).function, 3, 1, domain=[(-1, 3)], name="wide"), 4),
]


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
    assert plan.parameters == (2 * N + 1) * (K**N + 2 * N * K + 1)


def test_one_neuron_less_is_seen() -> None:
    """Negative control: without its last value block a cell is wrong."""
    target, K = CASES[0]
    network = plan_of(target, K).build(target)
    network.V[-1] = 0
    grid = network.grid
    x = grid.centres(grid.all_sequences())
    wrong = (np.abs(network(x) - target(x)) > 0.5).any(axis=(1, 2))
    assert wrong.sum() == 1


def test_the_sampled_distance_falls_with_the_grid() -> None:
    target = sort(2, 1)
    found = [plan_of(target, K).build(target).distance_sampled(target, 2) for K in (4, 16)]
    assert found[0] / found[1] == pytest.approx(4, rel=0.05)


@pytest.mark.parametrize(
    ("target", "K", "said"),
    [
        (prefix_mean(5, 1), 2, "n d = 5"),
        (prefix_mean(2, 2), 32, "1,048,576"),
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
