"""Sparse Transformers as networks: exact values, the overwrite gap, and float64."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from tests.plans import constants_of

import everyformer as ef
from everyformer import patterns
from everyformer.construct.shifts.assembly import proof_steps
from everyformer.construct.shifts.quantise import positional_encoding
from everyformer.construct.shifts.sparse import sparse_ids, sparse_shifts
from everyformer.construct.shifts.sparse_constants import (
    SparseConstants,
    least_coefficient,
    lifted,
    stated_coefficient,
)
from everyformer.construct.shifts.sparse_plan import SparsePlan, plan_sparse
from everyformer.construct.shifts.value import ValuePlan, value_map
from everyformer.construct.table import Table
from everyformer.errors import GridError, PatternError
from everyformer.model.network import Network
from everyformer.numerics.kinds import EXACT
from everyformer.numerics.rationals import exact_array
from everyformer.patterns import Pattern
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

PATTERNS = {
    "ring": (patterns.ring(3), 1, 2),
    "star": (patterns.star(4), 1, 2),
    "strided": (patterns.strided(4, 2), 1, 2),
    "dense": (patterns.dense(2), 2, 2),
    "window": (patterns.window(4, 1), 1, 2),
    "axial": (patterns.axial(2, 2), 1, 2),
    "axial 2x3": (patterns.axial(2, 3), 1, 2),
    "star of 5": (patterns.star(5), 1, 2),
    "window of wide tokens": (patterns.window(3, 1), 2, 2),
}


def mixing(
    n: int, d: int, box: tuple[float, float] = (0.0, 1.0), size: float = 3.0
) -> Target:
    """A function in which every entry depends on every other; in [-size, size]."""
    W = np.random.default_rng(n + 10 * d).normal(size=(n * d, n * d))

    def function(x: np.ndarray) -> np.ndarray:
        flat = x.reshape(*x.shape[:-2], -1)
        return size * np.tanh(flat @ W + 0.3).reshape(x.shape)

    return Target(function, n, d, domain=[box] * d, name="mixing")


def planned(
    pattern: Pattern, d: int, K: int, *, softened: bool = False
) -> tuple[SparsePlan, SparseConstants]:
    """A plan with positions 1 apart, and its constants."""
    spacing = None if softened else K
    target = mixing(pattern.n, d)
    plan = plan_sparse(target, K, pattern, softened=softened, spacing=spacing)
    assert isinstance(plan, SparsePlan)
    return plan, plan.sparse


def all_cells(c: SparseConstants) -> np.ndarray:
    return c.grid.centres(c.grid.all_sequences())


def table_of(c: SparseConstants, values: np.ndarray) -> Table:
    return Table(c.grid.all_sequences(), values)


@dataclass(frozen=True)
class Overwrite:
    """A written value that lies in the window of a later layer of the value map.

    Attributes:
        columns: The cell whose value is lost.
        token: Its token, 0-based.
        projection: u^T of the value, as text.
        id: The id whose window it lies in, in units of delta.
    """

    columns: tuple[int, ...]
    token: int
    projection: str
    id: int

    def __str__(self) -> str:
        """The overwrite in words."""
        return (
            f"token {self.token + 1} of cell {list(self.columns)} becomes a value with "
            f"u^T y = {self.projection}, which lies in the window of a later layer, of the "
            f"id {self.id} delta, and is overwritten there. A larger C lifts the ids."
        )


def overwritten(c: SparseConstants, table: Table, ids: np.ndarray) -> Overwrite | None:
    """The first value that one pass of the value map would lose, or None (Section 5.5).

    Ids decrease from layer to layer, so a token that holds y is hit again by the window of
    an id below its own with |u^T y - id| < delta/2.
    """
    u = exact_array(np.array(c.u))
    held = (exact_array(table.values) @ u) * (2 * c.K)  # in half cells
    windows = {int(number) for number in ids.reshape(-1)}
    for row, token in np.argwhere(np.asarray(held > 2 * int(ids.min()) - 2, dtype=bool)):
        below = held[row, token]
        nearest = int((below + 1) // 2)
        hit = nearest in windows and below != 2 * nearest - 1  # windows are open
        if hit and nearest < ids[row, token]:
            columns = tuple(int(m) for m in table.columns[row])
            shown = str(below / (2 * c.K))
            return Overwrite(columns, int(token), shown, nearest)
    return None


@pytest.mark.parametrize("name", ["ring", "star", "dense", "strided", "axial"])
def test_the_modified_network_is_its_table_exactly(name: str) -> None:
    """Targets in [-50, 50]; at (2, 2, 2) that lifts C."""
    plan, c = planned(*PATTERNS[name])
    values = np.random.default_rng(0).integers(-5000, 5000, (c.grid.sequences, c.n, c.d))
    table = table_of(c, values / 100)
    network = plan.network(table)
    x = all_cells(c)
    assert (network.exact(x) == exact_array(table.values)).all()
    assert network.architecture.class_name == "modified ST^{2,1,1}"
    raised = lifted(c, table)
    assert overwritten(raised, table, sparse_ids(raised, table.columns)) is None
    edges = np.floor(x * c.K) / c.K  # the lower corners belong to their cells
    assert (network.exact(edges) == exact_array(table.values)).all()


def test_dense_2_2_2_is_lifted() -> None:
    _, c = planned(*PATTERNS["dense"])
    assert c.C == 128 == stated_coefficient(2, 2, 2, 1)
    large = table_of(c, np.full((16, 2, 2), 50.0))
    assert lifted(c, large).C == 152  # u^T y = 150
    assert lifted(c, table_of(c, np.full((16, 2, 2), 1.0))).C == 128


def aimed(c: SparseConstants) -> Table:
    """Values that lie in the window of the next smaller id."""
    columns = c.grid.all_sequences()
    ids = sparse_ids(c, columns)
    order = np.sort(ids, axis=None)
    values = np.zeros((*ids.shape, c.d))
    below = np.searchsorted(order, ids) - 1
    values[..., 0] = np.where(below < 0, 0.0, order[np.maximum(below, 0)] / c.K)
    return Table(columns, values)


def value_network(plan: SparsePlan, c: SparseConstants, table: Table) -> Network:
    """One pass of the value map, whatever is overwritten."""
    ids = sparse_ids(c, table.columns)
    before = [
        s
        for s in proof_steps(c, sparse_shifts, table, ids)
        if s.stage.attention is not None
    ]
    first = next(iter(proof_steps(c, sparse_shifts, table, ids)))
    assert first.stage.name == "quantise"
    last = value_map(c, EXACT, table, ids, ValuePlan(1, 0, 0))
    return Network(
        plan.architecture,
        tuple(step.stage for step in [first, *before, *last]),
        positional_encoding(c, EXACT),
    )


def test_the_overwrite_gap_is_there_and_is_closed() -> None:
    """Ring (3, 1, 2), values aimed at the next window: without a lift 8 of 8 are wrong."""
    plan, c = planned(*PATTERNS["ring"])
    table, x = aimed(c), all_cells(c)
    ids = sparse_ids(c, table.columns)
    found = overwritten(c, table, ids)
    assert found is not None
    assert "overwritten" in str(found)
    assert found.id in ids
    wrong = (value_network(plan, c, table).exact(x) != exact_array(table.values)).any(
        (1, 2)
    )
    assert int(wrong.sum()) == 8
    raised = lifted(c, table)
    assert raised.C > table.values.max() > c.C
    assert overwritten(raised, table, sparse_ids(raised, table.columns)) is None
    right = value_network(plan, raised, table).exact(x) == exact_array(table.values)
    assert right.all()
    assert (plan.network(table).exact(x) == exact_array(table.values)).all()


def test_a_lift_that_float64_cannot_hold_becomes_a_scale() -> None:
    plan, c = planned(*PATTERNS["ring"], softened=True)
    values = np.random.default_rng(1).uniform(-1e12, 1e12, (8, 3, 1))
    table = table_of(c, values)
    assert lifted(c, table) is c
    network = plan.network(table)
    assert "scale up" in [stage.name for stage in network.stages]
    y = network(all_cells(c), executor="reference")
    assert np.abs(y - values).max() <= 1e-9 * 1e12


@pytest.mark.parametrize("name", PATTERNS)
def test_float64_networks_are_their_tables(name: str) -> None:
    """softmax and four ReLUs: all cells, and 400 random points off the ramps."""
    pattern, d, K = PATTERNS[name]
    target = mixing(pattern.n, d)
    built = ef.construct(target, grid=K, method=ef.SparseShifts(pattern))
    c = constants_of(built.plan)
    assert built.network.architecture.class_name == "ST^{2,1,4}"
    assert built.network.blocks == built.plan.count().blocks
    assert built.cost.parameters == built.plan.count().parameters
    assert built.cost.nonzeros <= built.plan.count().nonzeros_limit
    assert built.cost.stored_bytes == built.plan.count().stored_bytes + 8 * c.n * c.d
    assert built.cost.connections == pattern.connections
    x = c.grid.centres(c.grid.all_sequences())
    y = built.network(x, executor="reference")
    assert np.abs(y - target(x)).max() <= 1e-7
    x = np.random.default_rng(0).random((400, c.n, c.d))
    centre = (np.floor(x * K) + 0.5) / K
    y = built.network(x, executor="reference")
    assert np.abs(y - target(centre)).max() <= 1e-7
    ends = np.array([0.0, 1.0])[np.random.default_rng(0).integers(0, 2, (20, c.n, c.d))]
    y = built.network(ends, executor="reference")
    assert np.abs(y - target(np.clip(ends, 0.5 / K, 1 - 0.5 / K))).max() <= 1e-7


def test_random_patterns_and_tables() -> None:
    """Whatever satisfies Assumption 1 is built: two random parts, random values."""
    rng, found = np.random.default_rng(0), 0
    for seed in range(30):
        parts = (patterns.random(4, 1, seed + k) for k in (0, 100))
        pattern = patterns.cycle(*parts)
        if patterns.assumption_1(pattern).verdict is not Verdict.PROVED:
            continue
        plan, c = planned(pattern, 1, 2, softened=True)
        if c.id_bits > 51:
            continue
        table = table_of(c, rng.uniform(-3, 3, (c.grid.sequences, c.n, c.d)))
        y = plan.network(table)(all_cells(c), executor="reference")
        assert np.abs(y - table.values).max() <= 1e-7
        found += c.gamma != (0, 1, 2, 3)
    assert found >= 3


def test_the_sweep_is_the_same_function() -> None:
    target, pattern = mixing(3, 1), patterns.ring(3)
    wide, sweep = (
        ef.construct(target, grid=4, method=ef.SparseShifts(pattern, variant=variant))
        for variant in ("wide", "sweep")
    )
    layers = [built.plan.to_json()["stages"]["chain shifts"] for built in (wide, sweep)]
    assert layers == [2, 8]
    x = np.random.default_rng(0).random((50, 3, 1))
    ways = [built.network(x, executor="reference") for built in (wide, sweep)]
    assert np.array_equal(*ways)


def test_a_box_of_its_own_is_padded_for() -> None:
    """The read-in is one block more, and p = 2 patterns need one more to begin again."""
    target = mixing(4, 1, (-1.0, 0.7))
    built = ef.construct(target, grid=2, method=ef.SparseShifts(patterns.strided(4, 2)))
    names = [stage.name for stage in built.network.stages]
    assert names[:4] == ["read in", "quantise", "padding", "chain shifts"]
    c = constants_of(built.plan)
    x = c.grid.centres(c.grid.all_sequences())
    assert np.abs(built.network(x, executor="reference") - target(x)).max() <= 1e-7


def test_an_equivariant_target_gets_positions() -> None:
    built = ef.construct(
        ef.targets.centring(3, 1), grid=2, method=ef.SparseShifts(patterns.ring(3))
    )
    assert built.network.positions is not None
    assert constants_of(built.plan).theorem == "Theorem 1"


def test_one_token_hears_itself_alone() -> None:
    """No stages A and B: the dense network, in the sparse class."""
    target = Target(lambda x: 3 * x - 1, 1, 1, lipschitz=3, name="line")
    built = ef.construct(target, grid=8, method=ef.SparseShifts(patterns.dense(1)))
    assert "chain shifts" not in [stage.name for stage in built.network.stages]
    assert built.network.architecture.class_name == "ST^{2,1,4}"
    c = constants_of(built.plan)
    x = c.grid.centres(c.grid.all_sequences())
    assert np.abs(built.network(x, executor="reference") - target(x)).max() <= 1e-7
    assert built.certificate.verdict is Verdict.PROVED


def test_the_least_coefficient() -> None:
    """(B2) holds for C and fails for C - 1."""
    for largest, s in [(5, 1), (128, 2), (77, 5), (10**9, 3)]:
        C = least_coefficient(largest, s)
        for factor, holds in ((C, True), (C - 1, False)):
            grows = (1 + Fraction(1, factor)) ** s - 1
            assert (grows * largest < 1) == holds


def test_the_plan_names_bits_and_pattern() -> None:
    plan = ef.plan(
        ef.targets.reverse(4, 1), 4, method=ef.SparseShifts(patterns.axial(2, 2))
    )
    text = str(plan)
    assert "Theorem 1 of Yun et al. 2020b, own proof" in text
    assert "1 2 4 3" in text
    assert "8 / 8" in text
    values = plan.to_json()
    assert (values["hops"], values["path"]) == (2, [1, 2, 4, 3])
    assert values["id_bits"] == plan.count().id_bits == constants_of(plan).t_r.bit_length()
    assert Pattern.from_json(values["pattern"]) == patterns.axial(2, 2)


def test_ids_beyond_float64_are_refused_before_anything_is_built() -> None:
    """A ring of 6 has s = 5; in rationals it is built."""
    target, pattern = ef.targets.reverse(6, 1), patterns.ring(6)
    assert ef.plan(target, 2, method=ef.SparseShifts(pattern)).to_json()["id_bits"] > 51
    with pytest.raises(GridError, match=r"ids of \d+ bits.*No grid fits.*softened=False"):
        ef.construct(target, grid=2, method=ef.SparseShifts(pattern))
    exact = ef.construct(target, grid=2, method=ef.SparseShifts(pattern, softened=False))
    x = np.array([[0.75], [0.25], [0.25], [0.75], [0.25], [0.25]])
    assert (exact.network.exact(x) == exact_array(x[::-1])).all()


@pytest.mark.unhooked
def test_what_does_not_go_with_a_pattern() -> None:
    target, ring = ef.targets.reverse(3, 1), patterns.ring(3)
    with pytest.raises(GridError, match="variant='narrow' does not exist with a pattern"):
        ef.plan(target, 2, method=ef.SparseShifts(ring, variant="narrow"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(GridError, match="variant='sweep' does not exist"):
        ef.plan(target, 2, method=ef.Averaging(variant="sweep"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(PatternError, match="for 4 tokens, but reverse has seq_len=3"):
        ef.plan(target, 2, method=ef.SparseShifts(patterns.ring(4)))


@pytest.mark.unhooked
def test_what_is_no_pattern_is_refused() -> None:
    for wrong in (patterns.ring, "ring", patterns.ring(3).parts[0], np.ones((3, 3))):
        with pytest.raises(
            PatternError, match=r"is not a pattern but of type .*from_graph"
        ):
            ef.construct(ef.targets.reverse(3, 1), grid=2, method=ef.SparseShifts(wrong))  # pyright: ignore[reportArgumentType]
    with pytest.raises(PatternError, match="whole numbers"):
        ef.plan(
            ef.targets.reverse(3, 1),
            2,
            method=ef.SparseShifts(patterns.ring(3), gamma=(0.5, 1, 2)),  # pyright: ignore[reportArgumentType]
        )


@pytest.mark.parametrize("softened", [True, False])
def test_the_contextual_map_of_a_network(softened: bool) -> None:
    """Definition 5.1 on every sequence, from the network's own attention layers."""
    pattern = patterns.axial(2, 2)
    built = ef.construct(
        mixing(4, 1), grid=2, method=ef.SparseShifts(pattern, softened=softened)
    )
    c = constants_of(built.plan)
    assert isinstance(c, SparseConstants)
    columns = c.grid.all_sequences()
    steps = np.array(c.steps) * c.spacing
    states = exact_array(c.grid.digits(columns) + steps[:, None]) * Fraction(1, c.K)
    assert built.network.positions is not None
    report = ef.contextual_mapping(built.network, states)
    assert report.verdict is Verdict.PROVED
    assert report.smallest_gap is not None
    assert report.smallest_gap >= Fraction(1, c.K)
    cut = replace(
        built.network,
        architecture=replace(built.network.architecture, pattern=None),
        stages=tuple(s for s in built.network.stages if s.name != "chain shifts"),
    )
    assert ef.contextual_mapping(cut, states).verdict is Verdict.REFUTED
