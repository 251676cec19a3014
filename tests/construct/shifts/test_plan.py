"""Layer counts by formula, and everything that is refused before it is built."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from tests.plans import constants_of, grid_plan

import everyformer as ef
from everyformer.construct.method import check_feasible
from everyformer.construct.problem import DEFAULT_MAX_MEMORY
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.errors import EveryformerError, GridError, MemoryLimitError
from everyformer.targets import centring, reverse, soft_attention
from everyformer.targets.target import Target

SIZES = [(2, 1, 8), (3, 1, 4), (2, 2, 4), (2, 3, 2), (4, 1, 4), (1, 1, 4), (1, 2, 2)]


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
def test_theorem_2_has_the_layers_of_the_paper(n: int, d: int, K: int) -> None:
    built = ef.construct(
        soft_attention(n, d), grid=K, method=ef.SelectiveShifts(softened=False)
    )
    layers = {stage.name: stage.blocks for stage in built.network.stages}
    assert layers["out of range"] + layers["quantise"] == d * K + d
    if n > 1:
        assert layers["selective shifts"] + layers["global shift"] == K**d + 1
    assert layers["push down"] == 1
    assert layers["negative to zero"] == d
    assert layers["value map"] == n * comb(K**d, n)
    assert built.cost.blocks == sum(layers.values()) == built.plan.count().blocks
    if n > 1:
        assert (
            built.plan.count().blocks == grid_plan(built.plan).paper_layers
        )  # nothing else in it


@pytest.mark.parametrize(("n", "d", "K"), SIZES[:5])
def test_theorem_3_has_the_layers_of_the_paper(n: int, d: int, K: int) -> None:
    built = ef.construct(reverse(n, d), grid=K, method=ef.SelectiveShifts(softened=False))
    layers = {stage.name: stage.blocks for stage in built.network.stages}
    assert layers["quantise"] == n * d * K
    assert layers["selective shifts"] + layers["global shift"] == n * K**d + 1
    assert layers["value map"] == n * K ** (n * d)
    assert (
        built.cost.blocks == built.plan.count().blocks == grid_plan(built.plan).paper_layers
    )


@pytest.mark.parametrize(("n", "d", "K"), SIZES)
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("positional", [True, False])
def test_plan_equals_the_built_network(
    n: int, d: int, K: int, softened: bool, positional: bool
) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n, d)) if positional else np.full((n, d), 1 / 3)
    target = Target(
        lambda x: np.sin(9 * x + 1) * x.sum(-2, keepdims=True) + values,
        n,
        d,
        equivariant=not positional,
        domain=[(-1, 2)],
    )
    built = ef.construct(target, grid=K, method=ef.SelectiveShifts(softened=softened))
    plan, cost = built.plan, built.cost
    assert [(s.name, s.layers) for s in grid_plan(plan).stages] == [
        (s.name, s.blocks) for s in built.network.stages
    ]
    r = 4 if softened else 1
    block = 2 * (4 * d + 1) + 2 * r * d + r + d
    positions = n * d if positional and n > 1 else 0
    assert (
        plan.count().parameters
        == cost.parameters
        == plan.count().blocks * block + positions
    )
    assert plan.count().stored_bytes + 8 * positions == cost.stored_bytes
    assert cost.nonzeros <= plan.count().nonzeros_limit


@pytest.mark.parametrize(("n", "d", "K"), [(2, 1, 4), (3, 1, 2), (2, 2, 2), (1, 2, 2)])
@pytest.mark.parametrize("softened", [True, False])
@pytest.mark.parametrize("domain", [(0, 1), (-1, 2)])
def test_plan_of_urpe_equals_the_built_network(
    n: int, d: int, K: int, softened: bool, domain: tuple[float, float]
) -> None:
    target = Target(lambda x: np.sin(9 * x + 1) * x[..., :1, :], n, d, domain=[domain])
    built = ef.construct(target, grid=K, method=ef.UrpeShifts(softened=softened))
    plan, cost = built.plan, built.cost
    assert [(s.name, s.layers) for s in grid_plan(plan).stages] == [
        (s.name, s.blocks) for s in built.network.stages
    ]
    r = 4 if softened else 1
    block = 2 * (4 * d + 1 + 1 + 2 * n - 1) + 2 * r * d + r + d  # b_V: 1, C: 2n - 1
    assert plan.count().parameters == cost.parameters == plan.count().blocks * block
    assert plan.count().stored_bytes == cost.stored_bytes
    assert cost.nonzeros <= plan.count().nonzeros_limit
    # C = 1 counts, stored or not.
    stages = built.network.stages
    whole = [s for s in stages if s.attention is not None and s.attention.gain is None]
    stored = sum(
        int(np.count_nonzero(a)) for name, a in built.network.arrays() if "phi" not in name
    )
    ones = sum(stage.blocks for stage in whole) * 2 * (2 * n - 1)
    assert cost.nonzeros == stored + ones
    positions = {"position layer": 1} if n > 1 else {}
    dense = ef.plan(
        target, K, method=ef.SelectiveShifts(positional=True, softened=softened)
    )
    same = {s.name: s.layers for s in grid_plan(plan).stages if s.name != "position layer"}
    assert same == {s.name: s.layers for s in grid_plan(dense).stages}
    assert dense.count().blocks + len(positions) == plan.count().blocks
    shown = plan.to_json()
    assert shown["attention"] == "urpe"
    assert shown["paper"] == ("Luo et al. 2022" if n > 1 else "Yun et al. 2020")
    assert shown["class"].endswith(f"Omega_U^{{2,1,{r}}}")
    assert f"of {shown['paper']}" in str(plan)


def test_lower_bound_of_section_5_4() -> None:
    assert plan_shifts(centring(3, 2), 4).lower_bound == Fraction(6 * 16**3, 6)
    assert plan_shifts(reverse(3, 2), 4).lower_bound == 6 * 16**3


def test_the_printed_plan() -> None:
    text = str(ef.plan(centring(3, 1), grid=16))
    for part in ("Theorem 2", "T^{2,1,4}", "blocks", "3,399", "id bits", "Section 5.4"):
        assert part in text


@pytest.mark.parametrize(
    ("target", "grid", "message"),
    [
        (centring(2, 1), 12, "grid=12 is not a power of two.*Use grid=8 or grid=16"),
        (centring(3, 2), 16, "ids of 64 bits.*Use grid=8 or less"),
        (reverse(4, 2), 16, "bits and windows.*Use grid="),
        (centring(5, 1), 4, "always repeat a column.*positional=True"),
        (
            Target(np.negative, 2, 1, equivariant=True, domain=[(1e9, 1e9 + 1)]),
            8,
            "Shift the coordinate towards 0",
        ),
    ],
)
def test_what_cannot_work_is_refused(target: Target, grid: int, message: str) -> None:
    with pytest.raises(GridError, match=message):
        ef.construct(target, grid=grid)


def test_all_reasons_at_once() -> None:
    with pytest.raises(GridError, match=r"not a power of two.*bits"):
        ef.construct(centring(3, 2), grid=24)


def test_without_positions_only_equivariant_targets() -> None:
    with pytest.raises(GridError, match="Claim 1"):
        ef.construct(reverse(3, 1), grid=4, method=ef.SelectiveShifts(positional=False))


def test_an_equivariant_target_may_use_positions() -> None:
    built = ef.construct(centring(2, 1), grid=4, method=ef.SelectiveShifts(positional=True))
    assert constants_of(built.plan).theorem == "Theorem 3"
    x = np.array([[0.3], [0.3]])
    assert np.abs(built.network(x) - 0).max() < 0.2  # equal columns are not lost


def test_positions_have_two_spacings() -> None:
    for spacing in (3, 6, 40):
        with pytest.raises(GridError, match=f"spacing={spacing} is not 4 .* nor 5"):
            ef.construct(reverse(2, 1), grid=4, method=ef.SelectiveShifts(spacing=spacing))


def test_memory_limit() -> None:
    plan = plan_shifts(centring(3, 2), 8)
    with pytest.raises(MemoryLimitError, match=r"250,075 blocks.*limit of 1.0 MiB"):
        check_feasible(plan, 2**20)
    check_feasible(plan, DEFAULT_MAX_MEMORY)
    with pytest.raises(MemoryLimitError, match="--max-memory"):
        ef.construct(reverse(2, 3), grid=16, method=ef.SelectiveShifts(softened=False))


def test_the_evaluation_of_f_comes_after_the_refusals() -> None:
    def never(x: np.ndarray) -> np.ndarray:
        raise AssertionError

    target = Target(never, 3, 2, equivariant=True)
    with pytest.raises(EveryformerError, match="not a power of two"):
        ef.construct(target, grid=6)


@pytest.mark.parametrize(
    ("target", "grid"),
    [
        (centring(2, 7), 1000),
        (reverse(2, 8), 16),
        (reverse(300, 1), 64),
        (reverse(3000, 1), 64),
    ],
)
def test_plans_of_any_size_are_made_by_formula(target: Target, grid: int) -> None:
    plan = ef.plan(target, grid)
    assert "e+" in str(plan)
    assert plan.to_json()["grid"] == grid
    with pytest.raises(EveryformerError):
        check_feasible(plan, DEFAULT_MAX_MEMORY)


def test_a_name_is_no_markup() -> None:
    assert "a[/b]" in str(ef.plan(Target(np.negative, 2, 1, name="a[/b]"), 4))


@pytest.mark.parametrize("ends", [(0.0, 1e12), (-3e9, 1e9)])
def test_a_wide_box_has_the_cells_of_the_grid(ends: tuple[float, float]) -> None:
    """Read in at once, the first box costs 1.78 times as much, in float64 19 times."""
    target = ef.Target(lambda x: x[..., ::-1, :], 2, 1, domain=[ends])
    built = ef.construct(target, grid=16)
    ideal = (ends[1] - ends[0]) ** 2 / 16 * (2 / 12) ** 0.5
    for bound in (built.certificate.bound, built.certificate.float64_bound):
        assert bound is not None
        assert ideal <= float(bound.value) <= ideal * 1.001
    x = np.array([[ends[0], ends[1]], [ends[1], ends[0]]])[..., None]
    cell = (ends[1] - ends[0]) / 16
    assert (np.abs(built.network(x) - x[:, ::-1]) <= cell * 0.5001).all()
