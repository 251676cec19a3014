"""Averaging attention: the acceptance values, the variants, and what is refused."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plans import grid_plan, table_of

import everyformer as ef
from everyformer.construct.averaging.layers import (
    AveragingSizes,
    Variant,
    averaging_stages,
    digits,
    read_in_out,
    table_keys,
)
from everyformer.construct.averaging.plan import AveragingPlan, plan_averaging
from everyformer.construct.table import Table
from everyformer.errors import (
    GridError,
    MemoryLimitError,
    NumberKindError,
    ToleranceError,
)
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.executor import ExecutorName
from everyformer.model.network import Network
from everyformer.targets import reverse, soft_attention
from everyformer.targets.box import Box, Grid
from everyformer.targets.target import Target

VARIANTS: tuple[Variant, ...] = ("wide", "narrow", "two-step")


def with_positions(x: np.ndarray) -> np.ndarray:
    j = np.arange(x.shape[-2])[:, None]
    return np.sin(3 * x + j) * x.mean(axis=(-2, -1), keepdims=True) + x**2 / 2


def symmetric(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x) * x.mean(axis=(-2, -1), keepdims=True) + x**2 / 2


def grid_of(n: int, d: int, K: int) -> Grid:
    return Grid(K, n, Box.per_coordinate([(0.0, 1.0)], d))


def network_of(a: AveragingSizes) -> tuple[Network, Table]:
    """The network with a ramp of choice."""
    f = with_positions if a.positional else symmetric
    g = a.grid
    columns = g.all_sequences()
    if not a.positional:
        columns = np.concatenate([g.distinct_sets(), g.repeated_multisets()])
    table = Table(columns, f(g.centres(columns)))
    stages = tuple(averaging_stages(a, table))
    layers = [s.feed_forward for s in stages if s.feed_forward is not None]
    spec = ArchitectureSpec(
        *(a.n, a.d, 1, 1, max(layer.W_1.shape[1] for layer in layers)),
        *("softmax", "relu", False),
        width=a.layout.width,
    )
    return Network(spec, stages, registers=read_in_out(a)), table


CASES = [
    (2, 1, 16, 20, True, 1e-12, 0.0652, 4277),
    (2, 1, 32, 30, True, 6e-12, 0.036, 16_757),
    (2, 1, 64, 30, True, 3e-11, 0.017, 66_293),
    (3, 1, 12, 34, True, 4e-11, 0.1, 41_677),
    (2, 2, 4, 30, True, 2e-12, 0.29, 5198),
    (2, 1, 16, 30, False, 4e-11, 0.0652, None),
    (3, 1, 8, 30, False, 5e-10, 0.15, None),
    (4, 1, 8, 30, False, 1e-8, 0.15, None),
    (2, 2, 4, 30, False, 1e-10, 0.29, None),
]


@pytest.mark.rows(5)
@pytest.mark.parametrize(
    ("n", "d", "K", "e", "positional", "table_error", "sup", "nonzeros"), CASES
)
def test_acceptance(
    n: int,
    d: int,
    K: int,
    e: int,
    positional: bool,
    table_error: float,
    sup: float,
    nonzeros: int | None,
) -> None:
    a = AveragingSizes(grid_of(n, d, K), positional, "wide", Fraction(1, 2**e))
    network, table = network_of(a)
    executors: tuple[ExecutorName, ...] = ("literal", "reference")
    for executor in executors:
        found = network(a.grid.centres(table.columns), executor=executor)
        assert np.abs(found - table.values).max() <= table_error
    x = np.random.default_rng(0).random((2000, n, d))
    f = with_positions if positional else symmetric
    assert np.abs(network(x) - f(x)).max() <= sup  # sampled
    if nonzeros is not None:
        arrays = [array for stage in network.stages for _, array in stage.arrays()]
        assert sum(np.count_nonzero(array) for array in arrays) == nonzeros
    assert network.blocks == (2 if positional else 3)


@pytest.mark.parametrize(
    ("n", "d", "K", "e"), [(3, 1, 12, 34), (2, 1, 64, 38), (2, 2, 8, 39)]
)
def test_ids_are_right_within_the_float64_rule(n: int, d: int, K: int, e: int) -> None:
    """With numpy's matmul, whose order of summation is not that of the units."""
    a = AveragingSizes(grid_of(n, d, K), True, "wide", Fraction(1, 2**e))
    assert n * d * np.log2(K) + np.log2(n) + e <= 52
    network, _ = network_of(a)
    rng = np.random.default_rng(1)
    x = rng.random((4000, n, d))
    state = network.executor.enter(x).reshape(-1, a.layout.width)
    units = digits(a)
    hidden = np.maximum(state @ units.W_1.T + units.b_1, 0)
    found = (hidden @ units.W_2)[:, a.layout.names.index("A")]
    cells = np.minimum(np.floor(x * K), K - 1)
    places = K ** (np.arange(d) + d * np.arange(n)[:, None])
    assert np.abs(found - (cells * places).sum(axis=-1).reshape(-1)).max() < 3 / 8


def test_beyond_the_rule_cancellation_spoils_ids() -> None:
    """The case that was measured to fail: 70 bits."""
    a = AveragingSizes(grid_of(3, 1, 12), True, "wide", Fraction(1, 2**58))
    units = digits(a)
    x = np.random.default_rng(1).random((4000, 3, 1))
    state = read_in_out(a).read_in(x).reshape(-1, a.layout.width)
    found = (np.maximum(state @ units.W_1.T + units.b_1, 0) @ units.W_2).sum(axis=1)
    cells = (np.floor(x * 12)[..., 0] * 12 ** np.arange(3)).reshape(-1)
    assert np.abs(found - cells).max() > 3 / 8


def test_one_attention_layer_against_129() -> None:
    target = Target(with_positions, 2, 1)
    ours = ef.construct(target, grid=64, method="averaging")
    assert ours.cost.attention_layers == 1
    assert ours.plan.count().blocks == ours.cost.blocks == 2
    theirs = ef.plan(target, 64)
    shifts = [s.layers for s in grid_plan(theirs).stages if s.name.endswith("shifts")]
    assert shifts == [128]


@pytest.mark.parametrize("variant", VARIANTS)
def test_plans_are_what_is_built(variant: Variant) -> None:
    for n, d, K in ((2, 1, 8), (2, 2, 3), (3, 1, 4)):
        target = Target(with_positions, n, d)
        built = ef.construct(target, grid=K, method=ef.Averaging(variant=variant))
        plan, cost = built.plan, built.cost
        assert isinstance(plan, AveragingPlan)
        assert (plan.blocks, plan.parameters) == (cost.blocks, cost.parameters)
        assert plan.stored_bytes == cost.stored_bytes
        assert cost.nonzeros <= plan.nonzeros_limit <= cost.nonzeros + 40
        assert cost.attention_layers == 1
        table = plan.tabulate(target)
        x = plan.shape.centres(table.columns)
        assert np.abs(built.network(x) - table.values).max() < 1e-11
        widths = [
            s.feed_forward.W_1.shape[1] for s in built.network.stages if s.feed_forward
        ]
        assert max(widths) == built.network.architecture.d_ff
        if variant == "narrow":
            assert set(widths) == {2}
            assert plan.blocks == d * (n * K - 1) + n * K ** (n * d) - 1 + 1


def test_the_equivariant_plan_is_what_is_built() -> None:
    for variant in ("wide", "narrow"):
        built = ef.construct(
            Target(symmetric, 3, 1, equivariant=True),
            grid=8,
            method=ef.Averaging(variant=variant),
        )
        assert built.plan.count().blocks == built.cost.blocks
        assert built.plan.count().parameters == built.cost.parameters


def test_exactly_in_rationals() -> None:
    a = AveragingSizes(grid_of(3, 1, 4), True, "wide", Fraction(1, 2**20))
    network, table = network_of(a)
    x = a.grid.centres(table.columns[::7])
    exact = network.exact(x)
    assert np.abs(exact.astype(float) - table.values[::7]).max() < 1e-15
    ids = network.trace(x)[-1].state[..., a.layout.names.index("C")]
    keys = table_keys(a, table.columns[::7])
    assert np.abs(ids + 64 * np.arange(3) - keys).max() < 1e-12


def test_on_ramps_outputs_stay_in_the_range_of_the_table() -> None:
    a = AveragingSizes(grid_of(2, 1, 8), True, "wide", Fraction(1, 2**10))
    network, table = network_of(a)
    rng = np.random.default_rng(3)
    lines = rng.integers(0, 9, (4000, 2, 1)) / 8
    x = np.clip(lines + (rng.random(lines.shape) - 0.5) / 2**10, 0, 1)
    found = network(x)
    assert found.min() >= table.values.min() - 1e-12
    assert found.max() <= table.values.max() + 1e-12


def test_equal_columns_are_as_exact_as_others_and_permutations_follow() -> None:
    built = ef.construct(
        Target(symmetric, 3, 1, equivariant=True), grid=8, method="averaging"
    )
    grid = grid_plan(built.plan).shape
    columns = grid.all_sequences()
    x = grid.centres(columns)
    found = built.network(x)
    assert np.abs(found - symmetric(x)).max() < 1e-10
    moved = built.network(x[:, [2, 0, 1]])
    assert np.abs(moved - found[:, [2, 0, 1]]).max() < 1e-10


@pytest.mark.parametrize("positional", [True, False])
def test_other_boxes(positional: bool) -> None:
    f = with_positions if positional else symmetric
    box = [(-1.0, 2.0), (0.5, 0.75)]
    target = Target(f, 2, 2, equivariant=not positional, domain=box)
    built = ef.construct(target, grid=4, method="averaging")
    x = grid_plan(built.plan).shape.centres(table_of(built).columns)
    assert np.abs(built.network(x) - f(x)).max() < 1e-9
    assert built.certificate.claims == ("real", "float64")


def test_saved_and_exported(tmp_path: Path) -> None:
    torch, onnx = pytest.importorskip("torch"), pytest.importorskip("onnxruntime")
    built = ef.construct(Target(with_positions, 2, 1), grid=8, method="averaging")
    x = np.random.default_rng(0).random((5, 2, 1))
    expected = built.network(x)
    built.network.save(tmp_path / "network.safetensors")
    again = ef.load(tmp_path / "network.safetensors")
    assert (again(x) == expected).all()
    assert again.construction == built.network.construction
    module = built.network.to_torch()
    assert np.abs(module(torch.from_numpy(x)).detach().numpy() - expected).max() < 1e-12
    built.network.to_onnx(tmp_path / "network.onnx")
    session = onnx.InferenceSession(tmp_path / "network.onnx")
    assert np.abs(session.run(None, {"x": x})[0] - expected).max() < 1e-12
    trace = built.network.trace(x)
    assert [step.stage for step in trace] == ["input", "digits", "sum and look-up"]
    assert len(built.network.trace_blocks(x, "digits")) == 2


def test_bits_do_not_depend_on_batch_or_threads() -> None:
    built = ef.construct(Target(with_positions, 2, 1), grid=16, method="averaging")
    x = np.random.default_rng(0).random((130, 2, 1))
    together = built.network(x, threads=2)
    assert (together == np.stack([built.network(one) for one in x])).all()


def test_a_tolerance() -> None:
    target = Target(with_positions, 2, 1)
    for p in (1, 2, 4):
        built = ef.construct(target, tol=0.1, p=p, method="averaging")
        assert built.certificate.verdict is ef.Verdict.PROVED
        assert built.certificate.claims == ("real", "float64")
    equal = ef.construct(soft_attention(3, 1), tol=0.1, method="averaging")
    assert isinstance(equal.plan, AveragingPlan)
    assert not equal.plan.averaging.positional


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"grid": 8, "p": float("inf")}, ToleranceError, "varies continuously"),
    ({"grid": 8, "variant": "other"}, GridError, "variant='other' does not exist"),
    ({"grid": 8, "positional": False}, GridError, "not declared equivariant"),
    ({"grid": 2**27}, GridError, "54.0 bits"),
    ({"grid": 2**20}, GridError, r"cancel inside one sum.*two-step"),
    ({"grid": 1024}, MemoryLimitError, "GiB"),
]


@pytest.mark.parametrize(("settings", "error", "text"), REFUSED)
@pytest.mark.unhooked
def test_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    given = dict(settings)
    own = {k: given.pop(k) for k in ("variant", "positional") if k in given}
    with pytest.raises(error, match=text):
        ef.construct(reverse(2, 1), method=ef.Averaging(**own), max_memory=2**28, **given)


@pytest.mark.unhooked
def test_other_refusals() -> None:
    unknown: Any = "other"
    with pytest.raises(GridError, match="method='other' does not exist"):
        ef.construct(reverse(2, 1), grid=4, method=unknown)
    many = Target(symmetric, 8, 1, equivariant=True)
    with pytest.raises(GridError, match=r"Bose-Chowla set.*positional=True"):
        ef.construct(many, grid=64, method=ef.Averaging(positional=False))
    with pytest.raises(GridError, match="two-step' without positions"):
        plan_averaging(many, 2, variant="two-step")
    built = ef.construct(reverse(2, 1), grid=4, method="averaging")
    with pytest.raises(NumberKindError, match="cannot be folded"):
        built.network(np.zeros((1, 2, 1)), executor="folded")


def test_a_code_that_is_no_bose_chowla_set_gives_collisions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the ids of two multisets agree, and the table is not reproduced."""
    target = Target(
        lambda x: x * (x * x).sum(axis=-2, keepdims=True), 3, 1, equivariant=True
    )
    plan = plan_averaging(target, 8)
    a = plan.averaging
    monkeypatch.setitem(a.__dict__, "code", np.arange(8))
    table = plan.tabulate(target)
    network = plan.network(table)
    x = a.grid.centres(table.columns)
    assert np.abs(network(x) - table.values).max() > 0.1
    names = a.layout.names

    def keys_of(given: Network) -> ef.ContextualMapping:
        def keys(sequences: np.ndarray) -> np.ndarray:
            state = given.trace(sequences)[-1].state
            C, S = (state[..., names.index(name)] for name in ("C", "S"))
            return np.round(a.V * C + S)

        return ef.contextual_mapping(keys, x, equivariant=True)

    found = keys_of(network)
    assert found.verdict is ef.Verdict.REFUTED
    assert found.across is not None
    assert "share the id" in str(found)
    assert keys_of(plan_averaging(target, 8).network(table)).verdict is (ef.Verdict.PROVED)
