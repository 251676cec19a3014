"""The partition of unity as a network: formula, acceptance values, plans, refusals."""

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.certify.partition.partition_map import average, lattice, waves
from tests.cli.conftest import invoke
from tests.plans import grid_plan

import everyformer as ef
from everyformer.construct.partition.layers import Anchored, partition_stages, read_in_out
from everyformer.construct.partition.plan import PartitionPlan, plan_partition
from everyformer.errors import (
    EveryformerError,
    GridError,
    MemoryLimitError,
    TargetError,
    ToleranceError,
)
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.executor import ExecutorName
from everyformer.model.network import Network
from everyformer.model.prefix import run_beside_prefix
from everyformer.targets import reverse
from everyformer.targets.target import Target


def built_with(target: Target, K: int, D: float, m: int) -> ef.Built:
    return ef.construct(target, grid=K, method=ef.Partition(decay=D, margin=m))


def lattice_of(built: ef.Built) -> PartitionPlan:
    assert isinstance(built.plan, PartitionPlan)
    return built.plan


def network_of(target: Target, K: int, D: int, m: int) -> Network:
    """The network alone, without a plan and its bound."""
    anchored = Anchored(lattice(target, K, D, m))
    values = target(anchored.points())
    n, d, N = target.seq_len, target.d_model, anchored.N
    spec = ArchitectureSpec(
        *(n, d, 1, N + 1, 2 * N, "softmax", "relu", False),
        width=anchored.layout.width,
        num_prefix=len(values),
    )
    stages = tuple(partition_stages(anchored, values))
    return Network(spec, stages, registers=read_in_out(anchored, values))


def points(target: Target, count: int, seed: int = 0) -> np.ndarray:
    low, high = np.array(target.domain.lows), np.array(target.domain.highs)
    cube = np.random.default_rng(seed).random((count, target.seq_len, target.d_model))
    return low + (high - low) * cube


@pytest.mark.parametrize(
    ("n", "d", "K", "D", "m"),
    [(2, 1, 16, 2, 4), (2, 1, 32, 1, 4), (3, 1, 8, 2, 4), (2, 2, 4, 2, 3)],
)
def test_network_against_formula(n: int, d: int, K: int, D: int, m: int) -> None:
    built = built_with(waves(n, d), K, D, m)
    x = points(built.target, 8)
    want = average(built.target, lattice_of(built).lattice, x)
    assert np.abs(built.network(x) - want).max() <= 1e-14
    held = built.network.registers
    assert held is not None
    assert held.prefix is not None
    after_sum = run_beside_prefix(
        built.network.stages[:2], held.prefix, held.beside_prefix(x), "softmax"
    )
    names = Anchored(lattice_of(built).lattice).layout.names
    z = [names.index(f"z{k}") for k in range(n * d)]
    found = after_sum[..., z]
    assert np.abs(found - x.reshape(len(x), 1, -1)).max() <= 5e-16
    assert built.cost.blocks == built.plan.count().blocks == 3
    assert built.cost.attention_layers == built.plan.count().attention_layers == 2
    assert built.cost.parameters == built.plan.count().parameters
    assert built.cost.stored_bytes == built.plan.count().stored_bytes
    assert 0.9 * built.plan.count().nonzeros_limit < built.cost.nonzeros
    assert built.cost.nonzeros <= built.plan.count().nonzeros_limit
    assert grid_plan(built.plan).architecture.width == d + n + 4 * n * d + 1


TABLE = {
    (8, 1): 2.7e-2, (8, 2): 1.6e-2, (8, 8): 7.2e-2, (8, 200): 1.3e-1,
    (16, 1): 6.9e-3, (16, 2): 4.7e-3, (16, 8): 3.5e-2, (16, 200): 6.2e-2,
    (32, 1): 1.7e-3, (32, 2): 1.8e-3, (32, 8): 1.8e-2, (32, 200): 3.3e-2,
}  # fmt: skip
"""sup |g - f| of the target of two tokens by (K, D), measured at 2,000 random points."""


@pytest.fixture(scope="module")
def sups() -> dict[tuple[int, int], float]:
    target = waves(2)
    x = points(target, 1000)
    want = target(x)
    return {
        (K, D): float(np.abs(network_of(target, K, D, 4)(x) - want).max()) for K, D in TABLE
    }


def test_sup_errors_are_those_of_the_table(sups: dict[tuple[int, int], float]) -> None:
    for case, value in TABLE.items():
        slack = 0.15 if case[1] == 200 else 0.06  # jumps: a sample finds few of the worst
        assert sups[case] == pytest.approx(value, rel=slack), case  # sampled


def test_the_order_is_two_at_a_finite_temperature_and_one_near_hardmax(
    sups: dict[tuple[int, int], float],
) -> None:
    for K in (8, 16):
        assert sups[K, 1] / sups[2 * K, 1] == pytest.approx(4, rel=0.06)
        assert sups[K, 200] / sups[2 * K, 200] < 2.3


def test_three_tokens_against_a_piecewise_constant_function() -> None:
    target = waves(3)
    x = points(target, 200)
    network = network_of(target, 16, 2, 4)
    assert network.architecture.num_prefix == 15_625
    gap = np.abs(network(x) - target(x)).max()
    assert gap == pytest.approx(6.2e-3, rel=0.2)  # sampled
    cells = (np.floor(16 * x) + 0.5) / 16
    assert np.abs(target(cells) - target(x)).max() > 4.5e-2


def test_every_executor_computes_it(tmp_path: Path) -> None:
    target = waves(2, 1, (-1.5, 2.0))
    built = built_with(target, 4, 2, 1)
    x = points(target, 5)
    want = average(target, lattice_of(built).lattice, x)
    executors: tuple[ExecutorName, ...] = ("literal", "reference", "prefix")
    for executor in executors:
        found = built.network(x, executor=executor)
        assert np.abs(found - want).max() <= 2e-14
    built.save(tmp_path)
    again = ef.load(tmp_path / "network.safetensors")
    assert np.array_equal(again(x), built.network(x))
    module = built.network.to_torch()
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        outputs = module(torch.from_numpy(x)).numpy()
    assert np.abs(outputs - want).max() <= 2e-14
    steps = built.network.trace(x[0])
    assert [step.stage for step in steps] == ["input", "slots", "sum", "average and select"]


def test_onnx(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    built = built_with(waves(2), 4, 2, 1)
    x = points(built.target, 3)
    built.network.to_onnx(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "network.onnx"))
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    assert np.abs(found - built.network(x)).max() <= 1e-14


@pytest.mark.parametrize("p", [2, math.inf])
def test_a_tolerance_is_met_with_the_planned_bound(p: float) -> None:
    target = waves(2)
    plan = ef.plan(target, tol=0.04, p=p, method=ef.Partition(margin=2))
    built = ef.construct(target, tol=0.04, p=p, method=ef.Partition(margin=2))
    assert isinstance(plan, PartitionPlan)
    assert lattice_of(built).lattice == plan.lattice
    certificate = built.certificate
    assert certificate.verdict is ef.Verdict.PROVED
    assert certificate.claims == ("real", "float64")
    assert certificate.float64_bound is not None
    assert plan.bound is not None
    ratio = certificate.float64_bound.value / plan.bound.value
    assert abs(ratio - 1) < Fraction(1, 10**7)
    middles = (np.arange(64) + 0.5) / 64
    x = np.stack(np.meshgrid(middles, middles), axis=-1).reshape(-1, 2, 1)
    gap = np.abs(built.network(x) - target(x))
    sampled = gap.max() if p == math.inf else (gap**2).sum(axis=(1, 2)).mean() ** 0.5
    assert sampled <= certificate.float64_bound.value
    assert sampled >= float(certificate.float64_bound.value) / 4
    name = "sup|waves - g|" if p == math.inf else "d_2(waves, g)"
    assert f"PROVED: {name} <= 0.04" in str(certificate)


def test_far_boxes_and_single_tokens() -> None:
    target = waves(1, 2, (10.1, 11.3))
    built = ef.construct(target, grid=12, method="partition")
    x = points(target, 200)
    bound = built.certificate.float64_bound
    assert bound is not None
    gap = (np.abs(built.network(x) - target(x)) ** 2).sum(axis=(1, 2)).mean()
    sampled = (gap * float(target.domain.volume(1))) ** 0.5
    assert sampled <= float(bound.value) <= 4 * sampled


def logarithm(x: np.ndarray) -> np.ndarray:
    return np.log(x + 0.05) + 0 * x.mean(axis=-2, keepdims=True)


def test_a_target_undefined_on_the_margin_is_clipped() -> None:
    target = Target(logarithm, 2, 1)
    plan = plan_partition(target, 16, p=None)
    assert plan.clipped
    assert "clipped" in str(plan)
    fine = plan_partition(target, 24, p=None, decay=2, margin=1)
    assert not fine.clipped  # the margin is narrower there
    built = built_with(target, 16, 2, 2)
    bound = built.certificate.bound
    assert bound is not None
    x = points(target, 2000)
    gap = (np.abs(built.network(x) - target(x)) ** 2).sum(axis=(1, 2)).mean() ** 0.5
    assert gap <= float(bound.value)
    assert built.certificate.cells["clipped"]


def rooted(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.abs(x - 0.5))


def test_a_root_needs_no_declaration() -> None:
    target = Target(rooted, 1, 1, modulus=math.sqrt)
    built = ef.construct(target, tol=0.4, p=math.inf, method="partition")
    assert lattice_of(built).traced
    assert not built.certificate.is_conditional
    assert built.certificate.verdict is ef.Verdict.PROVED


def hardly_known(x: np.ndarray) -> np.ndarray:
    return np.abs(x - 0.5) + np.sqrt(x - x * 1.0)  # intervals do not know that it is 0


def test_without_a_range_a_declaration_is_enough() -> None:
    target = Target(hardly_known, 1, 1, lipschitz=1)
    built = ef.construct(target, tol=0.4, p=math.inf, method="partition")
    assert not lattice_of(built).traced
    assert built.certificate.is_conditional
    assert built.certificate.verdict is ef.Verdict.PROVED
    with pytest.raises(EveryformerError, match="finite on the anchors"):
        ef.plan(Target(hardly_known, 1, 1), tol=0.4, method="partition")


def untraceable(x: np.ndarray) -> np.ndarray:
    return np.asarray([[[float(v) for v in row] for row in s] for s in x.tolist()])


def test_a_target_of_which_nothing_is_known() -> None:
    target = Target(untraceable, 1, 1)
    with pytest.raises(TargetError, match="neither lipschitz nor modulus"):
        ef.construct(target, tol=0.1, method="partition")
    built = built_with(target, 4, 2, 1)
    assert built.certificate.verdict is ef.Verdict.UNKNOWN
    assert built.certificate.distance_sampled is not None
    assert lattice_of(built).bound is None


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"grid": 8, "decay": 0}, GridError, "not a number in"),
        ({"grid": 8, "margin": 0}, GridError, "not an integer from 1"),
        ({"grid": 8, "decay": 0.01, "margin": 2}, GridError, "larger margin"),
        ({"grid": 1}, GridError, "integer >= 2"),
        ({}, GridError, "either grid or tol"),
        ({"grid": 2000}, GridError, "cells on which f is enclosed"),
        ({"grid": 30, "max_memory": 2**20}, MemoryLimitError, "raise the limit"),
        ({"tol": -1}, ToleranceError, "positive"),
    ],
)
def test_refusals(
    settings: dict[str, Any], error: type[EveryformerError], text: str
) -> None:
    given = dict(settings)
    lattice = {k: given.pop(k) for k in ("decay", "margin") if k in given}
    with pytest.raises(error, match=text):
        ef.construct(waves(2), method=ef.Partition(**lattice), **given)


def test_a_tolerance_out_of_reach() -> None:
    with pytest.raises(ToleranceError, match="the best has 1024 anchors and the bound"):
        plan_partition(waves(2), tol=Fraction(1, 10**9), max_anchors=1024)


def test_settings_of_the_partition_with_another_method() -> None:
    with pytest.raises(ToleranceError, match="infinity"):
        ef.construct(waves(2), grid=8, p=math.inf)


def test_the_command_line(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    built = invoke(
        "construct", "reverse", "--tol", 0.05, "--method", "partition", "-o", folder
    )
    assert "PROVED: d_2(reverse, g) <= 0.05" in built.stdout
    assert "PROVED" in invoke("verify", folder).stdout
    arguments = ("plan", "reverse", "--method", "partition", "-p", "inf", "--json")
    shown = json.loads(invoke(*arguments, "--tol", 0.05).stdout)
    same = ef.plan(reverse(2), tol=0.05, p=math.inf, method="partition").to_json()
    assert shown == same | {"refusal": None}
    fixed = json.loads(
        invoke(*arguments, "--grid", 4, "--with", "decay=200", "--with", "margin=1").stdout
    )
    assert (fixed["decay"], fixed["margin"], fixed["prefix_tokens"]) == ("200", 1, 49)


def circle(x: np.ndarray) -> np.ndarray:
    return np.sqrt(1 - x * x)


def entropy(x: np.ndarray) -> np.ndarray:
    return x * np.log(x)


@pytest.mark.parametrize(("f", "p"), [(circle, 2), (circle, math.inf), (entropy, 2)])
def test_a_slope_without_end_costs_the_range_of_f_on_its_cell(f: Any, p: float) -> None:
    built = ef.construct(Target(f, 1, 1), 16, method=ef.Partition(), p=p)
    assert built.certificate.eps is not None
    x = ((np.arange(4096) + 0.5) / 4096).reshape(-1, 1, 1)
    gaps = np.abs(f(x) - built.network(x))
    measured = gaps.max() if p == math.inf else (gaps**p).mean() ** (1 / p)
    assert measured <= built.certificate.eps <= 2 * measured


def test_a_supremum_counts_the_point_where_x_log_x_has_no_value() -> None:
    found = ef.construct(
        Target(lambda x: 1 + x * np.log(x), 1, 1), 8, method=ef.Partition(), p=2
    )
    assert found.certificate.verdict is ef.Verdict.PROVED
    found = ef.construct(
        Target(lambda x: 1 + x * np.log(x), 1, 1), 8, method=ef.Partition(), p=math.inf
    )
    assert found.certificate.verdict is ef.Verdict.UNKNOWN
