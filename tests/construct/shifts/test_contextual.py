"""Lemma 6 and Lemma 10, exhaustively, in exact arithmetic, through the literal layers."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, product

import numpy as np
import pytest

import everyformer as ef
from everyformer.construct.shifts.constants import Constants
from everyformer.construct.shifts.contextual import (
    contextual_ids,
    contextual_state,
    global_shift,
    selective_shifts,
)
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction, Ids
from everyformer.model.network import Network
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.numerics.kinds import EXACT
from everyformer.numerics.rationals import exact_array
from everyformer.targets import centring, reverse
from everyformer.verdict import Verdict

SIZES = [
    *((2, 1, K) for K in range(2, 9)),
    *((3, 1, K) for K in range(4, 9)),
    (4, 1, 4),
    *((2, 2, K) for K in range(2, 5)),
    *((3, 2, K) for K in range(2, 4)),
    (2, 3, 2),
]


def constants(n: int, d: int, K: int, *, positional: bool, spacing: int) -> Constants:
    target = reverse(n, d) if positional else centring(n, d)
    plan = plan_shifts(target, K, softened=False, positional=positional, spacing=spacing)
    return plan.constants


def equivariant(n: int, d: int, K: int) -> Constants:
    return constants(n, d, K, positional=False, spacing=K + 1)


def network_of(c: Constants, *stages: Stage) -> Network:
    """Only the contextual map; `quantise` is a layer that does nothing."""
    idle = make_idle(c)
    spec = ArchitectureSpec(c.n, c.d, 2, 1, 1, "hardmax", "piecewise-linear", c.positional)
    construction = Construction(
        theorem=c.theorem,
        target="none",
        grid=c.K,
        lows=c.grid.box.lows,
        highs=c.grid.box.highs,
        ids=Ids(c.u, Fraction(c.t_l, c.K), Fraction(c.t_r, c.K)),
    )
    return Network(spec, (idle, *stages), None, construction)


def make_idle(c: Constants) -> Stage:
    stack = global_shift(c, EXACT).stage.attention
    assert stack is not None
    return Stage.of("quantise", "test", attention=replace(stack, W_O=stack.W_O * 0))


def contextual_network(c: Constants) -> Network:
    return network_of(c, selective_shifts(c, EXACT).stage, global_shift(c, EXACT).stage)


def extended_multisets(c: Constants) -> np.ndarray:
    """Every sequence over {-delta^{-nd}, 0, delta, .., 1 - delta}, up to order."""
    values = [Fraction(-(c.V**c.n)), *(Fraction(k, c.K) for k in range(c.K))]
    tokens = list(product(values, repeat=c.d))
    return exact_array(list(combinations_with_replacement(tokens, c.n)))


def states(c: Constants, columns: np.ndarray) -> np.ndarray:
    """Quantised sequences of columns, positions added."""
    offsets = np.array([j * c.spacing if c.positional else 0 for j in range(c.n)])
    return EXACT.quotient(c.grid.digits(columns) + offsets[:, None], c.K)


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
def test_lemma_6_on_all_three_categories(n: int, d: int, K: int) -> None:
    c = equivariant(n, d, K)
    sequences = extended_multisets(c)
    result = ef.contextual_mapping(contextual_network(c), sequences)
    assert result.verdict is Verdict.PROVED, str(result)
    assert result.sequences == len(sequences)
    if n <= c.V:  # otherwise no sequence has distinct columns
        assert result.smallest_gap is not None
        assert result.smallest_gap >= Fraction(1, K)


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
def test_recursion_equals_the_literal_layers(n: int, d: int, K: int) -> None:
    c = equivariant(n, d, K)
    columns = c.grid.all_sequences()
    literal = contextual_network(c).exact(states(c, columns))
    ids = contextual_ids(c, columns)
    assert (literal @ np.array(c.u, dtype=object) * K == ids).all()
    assert (literal * K == contextual_state(c, columns, ids)).all()


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
def test_lemma_10(n: int, d: int, K: int) -> None:
    c = equivariant(n, d, K)
    sets = c.grid.distinct_sets()
    if len(sets) == 0:
        return
    # ids = l~_j + C l~_n, and l~_n is the largest of the l~_j.
    tops = contextual_ids(c, sets).max(axis=-1) // (1 + c.last_coefficient)
    V = c.V
    assert tops.min() >= V ** (n - 1) * (V - 1)
    assert tops.max() <= V**n * (V - 1) - (V - 1) ** 2  # attained at n = 2
    assert len(set(tops.tolist())) == len(sets)


@pytest.mark.parametrize(
    ("n", "d", "K"),
    [(2, 1, 2), (2, 1, 5), (2, 1, 8), (3, 1, 4), (2, 2, 3), (4, 1, 2), (2, 3, 2)],
)
@pytest.mark.parametrize("paper", [True, False])
def test_theorem_3_on_all_sequences(n: int, d: int, K: int, paper: bool) -> None:
    c = constants(n, d, K, positional=True, spacing=K if paper else K + 1)
    columns = c.grid.all_sequences()
    network = contextual_network(c)
    result = ef.contextual_mapping(network, states(c, columns))
    assert result.verdict is Verdict.PROVED, str(result)
    literal = network.exact(states(c, columns)) @ np.array(c.u, dtype=object) * K
    ids = contextual_ids(c, columns)
    assert (literal == ids).all()
    assert int(ids.max()) <= c.largest_id


@pytest.mark.parametrize("K", [2, 4, 8])
def test_corner_case_of_theorem_3(K: int) -> None:
    """With the paper's E, n = 2, d = 1, one sequence is shifted twice; with ours, none."""
    for spacing, expected in ((K, 1), (K + 1, 0)):
        c = constants(2, 1, K, positional=True, spacing=spacing)
        columns = c.grid.all_sequences()
        l_1, l_2 = (columns[:, j] + c.position_ids[j] for j in range(2))
        first = l_1 + K * (l_2 - l_1)  # l~_1 and l~_2 by the closed formula
        second = l_2 + K * (first - l_2)
        closed = np.stack([first, second], axis=-1)
        closed = closed + c.last_coefficient * closed.max(axis=-1, keepdims=True)
        wrong = (contextual_ids(c, columns) != closed).any(axis=-1)
        assert wrong.sum() == expected
        if expected:
            assert columns[wrong].tolist() == [[K - 1, 0]]


def sabotage(c: Constants, how: str) -> Network:
    """A contextual map with one thing wrong."""
    shifts = selective_shifts(c, EXACT).stage
    stack = shifts.attention
    assert stack is not None
    last = [global_shift(c, EXACT).stage]
    if how == "decreasing order":
        stack = replace(stack, b_Q=stack.b_Q[::-1])
    elif how == "shift factor 1":
        stack = replace(stack, W_O=exact_array(stack.W_O * Fraction(1, c.V)))
    elif how == "no last layer":
        idle = make_idle(c)
        last = [replace(idle, kind="global shift")]
    broken = replace(shifts, attention=AttentionStack(**vars(stack)))
    return network_of(c, broken, *last)


@pytest.mark.parametrize("how", ["shift factor 1", "no last layer"])
@pytest.mark.parametrize(("n", "d", "K"), [(3, 1, 4), (3, 1, 8), (3, 2, 2), (4, 1, 6)])
def test_negative_controls_collide(how: str, n: int, d: int, K: int) -> None:
    c = equivariant(n, d, K)
    sequences = states(c, c.grid.distinct_sets())
    result = ef.contextual_mapping(sabotage(c, how), sequences)
    assert result.verdict is Verdict.REFUTED
    assert result.across is not None, f"{how}: {result}"
    assert result.smallest_gap == 0
    assert "share the id" in str(result)


@pytest.mark.parametrize(("n", "d", "K"), [(2, 1, 4), (3, 1, 4), (3, 2, 2), (2, 2, 3)])
def test_a_decreasing_sweep_leaves_the_interval(n: int, d: int, K: int) -> None:
    """Ids stay distinct, so no collision: property 6.3 is what fails, and is named."""
    c = equivariant(n, d, K)
    sequences = states(c, c.grid.distinct_sets())
    result = ef.contextual_mapping(sabotage(c, "decreasing order"), sequences)
    assert result.verdict is Verdict.REFUTED
    assert result.stray is not None
    assert "outside the interval of ids" in str(result)


def test_nothing_wrong_is_no_collision() -> None:
    c = equivariant(3, 1, 4)
    sequences = states(c, c.grid.distinct_sets())
    assert (
        ef.contextual_mapping(sabotage(c, "nothing"), sequences).verdict is Verdict.PROVED
    )
