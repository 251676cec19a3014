"""URPE: positions from one attention layer, and the whole network on every cell."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from tests.plans import constants_of, grid_plan

import everyformer as ef
from everyformer.construct.pipeline import Built
from everyformer.construct.shifts import constants
from everyformer.construct.shifts import position_layer as module
from everyformer.construct.shifts.contextual import contextual_ids
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.construct.shifts.position_layer import position_gain, position_layer
from everyformer.construct.shifts.quantise import positional_encoding
from everyformer.errors import DomainError
from everyformer.model.forward import attention_layer
from everyformer.model.stacks import AttentionStack, Stage, toeplitz
from everyformer.numerics.kinds import EXACT, FLOAT64
from everyformer.numerics.rationals import exact_array
from everyformer.targets import centring, reverse
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

SIZES = [
    *[(2, 1, 2), (2, 1, 4), (3, 1, 2), (3, 1, 3), (2, 2, 2), (2, 3, 2)],
    *[(3, 2, 2), (4, 1, 2), (5, 1, 2), (6, 1, 2)],
]
BOXES: list[tuple[float, float]] = [(0.0, 1.0), (-1.0, 0.7)]


def mixing(n: int, d: int, box: tuple[float, float] = (0.0, 1.0)) -> Target:
    """A function that is not equivariant: every entry depends on every other."""
    W = np.random.default_rng(n + 10 * d).normal(size=(n * d, n * d))

    def function(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(*x.shape[:-2], -1)
        return np.tanh(flat @ W + 0.3).reshape(x.shape)

    return Target(function, n, d, domain=[box] * d, name="mixing")


def build(n: int, d: int, K: int, box: int = 0, *, softened: bool = True) -> Built:
    target = mixing(n, d, BOXES[box])
    return ef.construct(target, grid=K, method=ef.UrpeShifts(softened=softened))


def cells(built: Built) -> tuple[np.ndarray, np.ndarray]:
    """The centres of all cells, and the target there."""
    grid = grid_plan(built.plan).shape
    x = grid.centres(grid.all_sequences())
    return x, built.target(x)


def with_stage(network: ef.Network, name: str, **arrays: np.ndarray) -> ef.Network:
    """The network with other arrays in the attention of one stage."""
    stages: list[Stage] = []
    for stage in network.stages:
        stack = stage.attention
        if stage.name != name or stack is None:
            stages.append(stage)
        else:
            stages.append(replace(stage, attention=replace(stack, **arrays)))
    return ef.Network(
        network.architecture, tuple(stages), network.positions, network.construction
    )


def first_stack(network: ef.Network) -> AttentionStack:
    stack = network.stages[0].attention
    assert network.stages[0].name == "position layer"
    assert stack is not None
    return stack


@pytest.mark.parametrize("n", range(1, 65))
def test_row_sums_are_the_position(n: int) -> None:
    """Proposition 4: with softmax 1/n everywhere, A 1 = ((i-1)/n)_i, whatever X is."""
    zeros = np.zeros((1, 1, 1, 1))
    stack = AttentionStack(
        W_Q=zeros,
        b_Q=zeros[0],
        W_K=zeros,
        W_V=zeros,
        W_O=zeros + 1,
        b_V=zeros[0] + 1,
        gain=position_gain(n).astype(float)[None, None],
    )
    x = np.random.default_rng(n).normal(size=(n, 1))
    v = attention_layer(stack, 0, x, "softmax") - x
    assert np.abs(v[:, 0] - np.arange(n) / n).max() <= 1e-12
    arrays = {name: value for name, value in vars(stack).items() if value is not None}
    exact = replace(stack, **{name: exact_array(value) for name, value in arrays.items()})
    found = attention_layer(exact, 0, exact_array(x), "hardmax") - exact_array(x)
    assert found[:, 0].tolist() == [Fraction(i, n) for i in range(n)]
    if n > 1:
        C = toeplitz(position_gain(n), n)
        assert np.array_equal(C, np.tril(np.ones((n, n), dtype=int), -1))


@pytest.mark.parametrize("spacing", [3, 4])
@pytest.mark.parametrize("box", [(0.0, 1.0), (-1.0, 0.7)])
def test_the_layer_adds_the_positions_of_theorem_3(
    spacing: int, box: tuple[float, float]
) -> None:
    plan = plan_shifts(
        mixing(5, 2, box), 3, softened=False, spacing=spacing, attention="urpe"
    )
    stack = position_layer(plan.constants, EXACT).stage.attention
    assert stack is not None
    x = exact_array(np.random.default_rng(0).normal(size=(4, 5, 2)))
    moved = attention_layer(stack, 0, x, "hardmax") - x
    assert (moved == positional_encoding(plan.constants, EXACT)).all()


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
@pytest.mark.parametrize("box", [0, 1])
def test_modified_network_equals_the_table_on_all_cells(
    n: int, d: int, K: int, box: int
) -> None:
    built = build(n, d, K, box, softened=False)
    x, values = cells(built)
    assert len(x) == K ** (n * d)
    assert (built.network.exact(x) == exact_array(values)).all()
    assert built.network.positions is None
    assert built.network.architecture.class_name == "modified Omega_U^{2,1,1}"
    assert built.network.stages[0].name == "position layer"
    layers = {stage.name: stage.blocks for stage in built.network.stages}
    assert layers["position layer"] == 1
    assert layers["quantise"] == n * d * K
    assert layers["selective shifts"] + layers["global shift"] == n * K**d + 1
    assert layers["value map"] == n * K ** (n * d)


@pytest.mark.parametrize(("n", "d", "K"), [size for size in SIZES if size[2] != 3])
@pytest.mark.parametrize("box", [0, 1])
def test_softened_network_on_all_cells_and_their_edges(
    n: int, d: int, K: int, box: int
) -> None:
    """Centres, lower edges (where a position may round down) and the upper edge."""
    built = build(n, d, K, box)
    grid = grid_plan(built.plan).shape
    x, values = cells(built)
    low, high = BOXES[box]
    edges = low + (high - low) * (grid.digits(grid.all_sequences()) / K)
    network = built.network
    assert np.abs(network(x, executor="reference") - values).max() <= 1e-7
    assert np.abs(network(edges, executor="reference") - values).max() <= 1e-7
    top = network(np.full((n, d), high), executor="reference")
    assert np.abs(top - values[-1]).max() <= 1e-7
    with pytest.raises(DomainError, match="Theorem 3 approximates on the domain alone"):
        network(np.full((n, d), high + 1))


def test_without_the_lift_some_positions_are_too_small() -> None:
    """n times (i - 1) times 1/n, added up in order, as the compiled executors do."""
    below: list[int] = []
    for n in range(2, 20):
        total = 0.0
        for i in range(1, n):
            total += 1 / n
            if total * (n * 1.5) < i * 1.5:
                below.append(n)
    assert {6, 7, 12} <= set(below)
    assert not set(below) & {2, 4, 8, 16}  # 1/n is exact


@pytest.mark.parametrize("n", [3, 5, 6])
def test_a_position_that_is_too_small_is_wrong_on_the_edge(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two things prevent it: the guard of all inputs, and positions that are rounded up."""
    x = np.zeros((n, 1))
    values = mixing(n, 1)(np.full((n, 1), 0.25))
    assert np.abs(build(n, 1, 2).network(x, executor="reference") - values).max() < 1e-7
    monkeypatch.setattr(constants, "EDGE_GUARD", Fraction(0))
    assert np.abs(build(n, 1, 2).network(x, executor="reference") - values).max() < 1e-7
    monkeypatch.setattr(module, "LIFT", -module.LIFT)
    y = build(n, 1, 2).network(x, executor="reference")
    assert np.abs(y - values).max() > 1e-3


@pytest.mark.parametrize("n", range(2, 25))
def test_float64_positions_are_never_too_small(n: int) -> None:
    """In any order of the sums: fewer than n + 4 roundings, each at most 2^-53."""
    c = plan_shifts(reverse(n, 1), 2, attention="urpe").constants
    lifted = position_layer(c, FLOAT64).stage.attention
    assert lifted is not None
    assert (lifted.W_O[0, 1] == 2.0**-40).all()
    stack = replace(lifted, W_O=lifted.W_O * np.array([1.0, 0.0])[:, None, None])
    x = np.zeros((n, 1))
    E = positional_encoding(c, EXACT) - c.guard
    z = exact_array(attention_layer(stack, 0, x, "softmax"))
    assert (z >= E).all()
    W_O = Fraction(float(stack.W_O[0, 0, 0, 0])) * (1 - Fraction(n + 4, 2**53))
    assert all(W_O * Fraction(i, n) >= E[i, 0] for i in range(n))
    assert (z - E <= E * Fraction(1, 2**43)).all()


@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_identical_tokens_go_to_different_rows(n: int, softened: bool) -> None:
    built = build(n, 1, 2, softened=softened)
    executor = "reference" if softened else "exact"
    for value, cell in ((0.2, 0.25), (0.9, 0.75)):
        x, centre = np.full((n, 1), value), np.full((n, 1), cell)
        y = built.network(x, executor=executor)
        expected = built.target(centre)
        assert np.abs(y - expected).max() <= 1e-7
        assert len(np.unique(np.round(expected, 3))) == n
    # The control: with C = 1 every token gets the same, so rows stay equal (Theorem 2).
    stack = first_stack(built.network)
    assert stack.gain is not None
    control = with_stage(built.network, "position layer", gain=stack.gain * 0 + 1)
    y = control(np.full((n, 1), 0.2), executor=executor)
    assert np.ptp(y) <= 1e-12
    assert np.abs(y - built.target(np.full((n, 1), 0.25))).max() > 0.01


def test_a_bias_of_the_key_does_nothing() -> None:
    """The paper prints c on the key side, where softmax cancels it; so nothing works."""
    built = build(3, 1, 2, softened=False)
    shifts = next(s for s in built.network.stages if s.name == "selective shifts")
    stack = shifts.attention
    assert stack is not None
    x = exact_array([[0], [Fraction(5, 2)], [Fraction(9, 2)]])
    u_x, c = x[:, 0], 3
    on_the_key = np.outer(u_x, u_x - c)
    without = np.outer(u_x, u_x)
    on_the_query = np.outer(u_x - c, u_x)
    rows = [np.argmax(scores, axis=-1).tolist() for scores in (on_the_key, without)]
    assert rows[0] == rows[1] != np.argmax(on_the_query, axis=-1).tolist()
    soft = [np.exp(s.astype(float)) for s in (on_the_key, without, on_the_query)]
    shares = [s / s.sum(axis=-1, keepdims=True) for s in soft]
    assert np.abs(shares[0] - shares[1]).max() <= 1e-15
    assert np.abs(shares[0] - shares[2]).max() > 0.1
    # A bias of the key is a bias 0: the sweep then shifts nobody.
    control = with_stage(built.network, "selective shifts", b_Q=stack.b_Q * 0)
    points, values = cells(built)
    wrong = (control.exact(points) != exact_array(values)).any(axis=(1, 2))
    assert wrong.mean() > 0.5


@pytest.mark.parametrize(
    ("n", "d", "K"),
    [
        *[(2, 1, 2), (2, 1, 3), (2, 1, 4), (2, 1, 8), (2, 1, 16), (2, 2, 2), (2, 2, 3)],
        *[(2, 3, 2), (3, 1, 2), (3, 1, 3), (3, 1, 4), (3, 1, 8), (3, 2, 2), (3, 2, 3)],
        *[(4, 1, 2), (4, 1, 3), (4, 1, 4), (4, 2, 2), (5, 1, 2), (5, 1, 3), (6, 1, 2)],
        (8, 1, 2),
    ],
)
@pytest.mark.parametrize("paper", [True, False])
def test_the_sweep_is_a_contextual_mapping(n: int, d: int, K: int, paper: bool) -> None:
    """All sequences, exactly; the closed formula of the top id fails on one, at most."""
    spacing = K if paper else K + 1
    plan = plan_shifts(reverse(n, d), K, softened=False, spacing=spacing, attention="urpe")
    c = plan.constants
    columns = c.grid.all_sequences()
    ids = contextual_ids(c, columns)
    assert len(set(ids.ravel().tolist())) == ids.size
    g = columns.astype(object) + np.array(c.position_ids, dtype=object)
    # G_n = a^n g_n - (a-1) sum_i a^(n-i) g_i over i = 1 .. n, a = K^d.
    weights = np.array([c.V ** (n - 1 - i) for i in range(n)], dtype=object)
    closed = c.V**n * g[:, -1] - (c.V - 1) * (g * weights).sum(axis=-1)
    found = ids.max(axis=-1) // (1 + c.last_coefficient)
    wrong = np.asarray(found != closed, dtype=bool)
    corner = paper and (n, d) == (2, 1)
    assert columns[wrong].tolist() == ([[K - 1, 0]] if corner else [])


@pytest.mark.parametrize("softened", [True, False])
def test_the_network_itself_is_checked(softened: bool) -> None:
    built = build(3, 1, 2, softened=softened)
    c = constants_of(built.plan)
    steps = np.arange(3)[:, None] * c.spacing
    states = EXACT.quotient(c.grid.digits(c.grid.all_sequences()) + steps, c.K)
    result = ef.contextual_mapping(built.network, states)
    assert result.verdict is Verdict.PROVED
    assert result.sequences == 8
    shifts = next(s for s in built.network.stages if s.name == "global shift").attention
    assert shifts is not None
    broken = with_stage(built.network, "global shift", W_O=shifts.W_O * 0)
    assert ef.contextual_mapping(broken, states).verdict is Verdict.REFUTED


def test_an_equivariant_target_gets_positions_too() -> None:
    built = ef.construct(centring(2, 1), grid=4, method="urpe")
    assert constants_of(built.plan).theorem == "Theorem 3"
    assert built.network.construction is not None
    assert built.network.construction.paper == "Luo et al. 2022"
    x, values = cells(built)
    assert np.abs(built.network(x, executor="reference") - values).max() <= 1e-9


def test_a_single_token_needs_no_positions() -> None:
    urpe = ef.construct(reverse(1, 2), grid=4, method="urpe")
    dense = ef.construct(reverse(1, 2), grid=4)
    assert [s.name for s in urpe.network.stages] == [s.name for s in dense.network.stages]
    for (_, a), (_, b) in zip(urpe.network.arrays(), dense.network.arrays(), strict=True):
        assert np.array_equal(a, b)
    assert grid_plan(urpe.plan).architecture.class_name == "Omega_U^{2,1,4}"
    assert constants_of(urpe.plan).paper.key == "Yun et al. 2020"


def test_the_coarsest_grid_has_its_position_layer() -> None:
    same = ef.construct(centring(2, 1), grid=2, method="urpe")
    assert same.network.stages[0].name == "position layer"
