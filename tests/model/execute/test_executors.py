"""The executors agree: literal with reference bit for bit, folded on the plateaus."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plans import constants_of, grid_plan, table_of
from tests.programs import run_program

import everyformer as ef
from everyformer.construct.pipeline import Built
from everyformer.errors import NumberKindError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.execute import cpu
from everyformer.model.execute.folded import NotFoldableError
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.targets import centring, prefix_mean, reverse, soft_attention
from everyformer.targets.target import Target


def boxed(equivariant: bool) -> Target:
    return Target(
        lambda x: np.sin(3 * x) + x.mean(-2, keepdims=True),
        2,
        2,
        domain=[(-1, 2), (0, 0.5)],
        equivariant=equivariant,
    )


TARGETS: list[tuple[Any, int, str]] = [
    (soft_attention(3, 1), 8, "selective-shift"),
    (prefix_mean(2, 2), 4, "selective-shift"),
    (reverse(3, 1), 4, "selective-shift"),
    (boxed(True), 4, "selective-shift"),
    (boxed(False), 4, "selective-shift"),
    (prefix_mean(3, 1), 4, "urpe"),
    (boxed(True), 4, "urpe"),
]


@pytest.fixture(scope="module", params=range(len(TARGETS)))
def built(request: pytest.FixtureRequest) -> Built:
    target, grid, method = TARGETS[request.param]
    return ef.construct(target, grid=grid, method=method)


def inputs(built: Built, count: int, seed: int = 0) -> np.ndarray:
    c = constants_of(built.plan)
    low, high = np.asarray(c.grid.box.lows), np.asarray(c.grid.box.highs)
    return low + (high - low) * np.random.default_rng(seed).random((count, c.n, c.d))


def test_literal_equals_reference_bit_for_bit(built: Built) -> None:
    x = inputs(built, 100)
    reference = built.network(x, executor="reference")
    assert np.array_equal(built.network(x, executor="literal"), reference)
    assert np.array_equal(built.network(x), reference)


def test_literal_is_bit_identical_for_any_batch_and_threads(built: Built) -> None:
    """Ramps too: every sum is done in the same order for every sequence."""
    x = inputs(built, 150)
    x[::3, 0, 0] = np.round(x[::3, 0, 0] * 8) / 8 - 2.0**-31
    c = constants_of(built.plan)
    x = np.clip(x, np.asarray(c.grid.box.lows), np.asarray(c.grid.box.highs))
    whole = built.network(x)
    one_by_one = np.concatenate([built.network(x[k : k + 1]) for k in range(40)])
    assert np.array_equal(one_by_one, whole[:40])
    for threads, size in ((1, 150), (2, 7), (3, 64), (2, 65)):
        parts = [
            built.network(x[k : k + size], threads=threads) for k in range(0, 150, size)
        ]
        assert np.array_equal(np.concatenate(parts), whole)


def test_folded_equals_literal(built: Built) -> None:
    x = inputs(built, 20_000, seed=1)
    folded = built.network(x, executor="folded")
    assert np.array_equal(folded[:3000], built.network(x[:3000]))
    if constants_of(built.plan).theorem == "Theorem 2":
        outside = 3 * x[:500] - 1
        assert np.array_equal(
            built.network(outside, executor="folded"), built.network(outside)
        )


def test_folded_takes_the_cell_on_ramps() -> None:
    built = ef.construct(prefix_mean(2, 1), grid=8)
    below = np.array([[[0.25 - 2.0**-32], [0.7]]])
    cell = built.network(np.array([[[0.2], [0.7]]]))
    assert np.array_equal(built.network(below, executor="folded"), cell)
    assert not np.array_equal(built.network(below), cell)


def random_network(
    seed: int, hard: bool, piecewise: bool, urpe: tuple[str, ...] = ()
) -> ef.Network:
    """A network that nobody constructed: general sizes, both halves in every block."""
    rng = np.random.default_rng(seed)
    L, n, d, h, m, r = 5, 4, 3, 2, 2, 5
    more = np.random.default_rng(seed + 1)  # all other weights stay what they are
    attention = AttentionStack(
        *(
            rng.normal(size=s)
            for s in ((L, h, m, d), (L, h, m), (L, h, m, d), (L, h, m, d))
        ),
        W_O=rng.normal(size=(L, h, d, m)) / 4,
        b_V=more.normal(size=(L, h, m)) / 4 if "b_V" in urpe else None,
        gain=more.random((L, h, 2 * n - 1)) if "gain" in urpe else None,
    )
    phi = None
    if piecewise:
        phi = ef.construct(
            centring(2, 1), grid=2, method=ef.SelectiveShifts(softened=False)
        ).network.stages[0]
        assert phi.feed_forward is not None
        one = phi.feed_forward.phi
        assert one is not None
        phi = replace(
            one,
            breaks=np.sort(rng.normal(size=(L, r, 2)), axis=-1),
            closed=rng.random((L, r, 2)) < 0.5,
            slopes=rng.normal(size=(L, r, 3)) * [1, 0, 1],
            intercepts=rng.normal(size=(L, r, 3)),
        )
    layers = FeedForwardStack(
        rng.normal(size=(L, r, d)),
        rng.normal(size=(L, r)),
        rng.normal(size=(L, d, r)) / 4,
        rng.normal(size=(L, d)),
        phi,
    )
    spec = ArchitectureSpec(
        n,
        d,
        h,
        m,
        r,
        "hardmax" if hard else "softmax",
        "piecewise-linear" if piecewise else "relu",
        positional=True,
    )
    stages = (
        Stage("both", "test", attention, layers),
        Stage("attention", "test", attention),
        Stage("feed-forward", "test", None, layers),
    )
    return ef.Network(spec, stages, rng.normal(size=(n, d)))


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("piecewise", [False, True])
@pytest.mark.parametrize("urpe", [(), ("b_V",), ("gain",), ("b_V", "gain")])
def test_literal_runs_networks_of_any_shape(
    hard: bool, piecewise: bool, urpe: tuple[str, ...]
) -> None:
    network = random_network(0, hard, piecewise, urpe)
    x = np.random.default_rng(1).normal(size=(3, 30, 4, 3))
    reference = network(x, executor="reference")
    literal = network(x, executor="literal")
    assert np.abs(literal - reference).max() <= 1e-12 * np.abs(reference).max()
    flat = x.reshape(-1, 4, 3)
    alone = np.concatenate([network(flat[k : k + 1]) for k in range(len(flat))])
    assert np.array_equal(alone, literal.reshape(-1, 4, 3))


def test_sizes_that_are_no_constants_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kernel for all layers of wide tokens, and one for each size: equal sums."""
    rng = np.random.default_rng(0)
    spec = ArchitectureSpec(3, 6, 2, 2, 3, "softmax", "relu", positional=False)
    sizes = ((2, 6), (2,), (2, 6), (2, 6), (6, 2))
    W_Q, b_Q, W_K, W_V, W_O = (rng.normal(size=(2, 2, *s)) for s in sizes)
    attention = AttentionStack(W_Q, b_Q, W_K, W_V, W_O)
    attention.W_Q[0, 0, :, 2:] = 0.0
    W_1, b_1, W_2, b_2 = (rng.normal(size=(2, *s)) for s in ((3, 6), (3,), (6, 3), (6,)))
    ff = FeedForwardStack(W_1, b_1, W_2, b_2)
    network = ef.Network(spec, (Stage("wide", "a test", attention, ff),))
    x = rng.normal(size=(70, 3, 6))
    wide = network(x, executor="literal")
    monkeypatch.setattr(cpu, "WIDE_STATE", 99)
    assert network(x, executor="literal").tobytes() == wide.tobytes()


def test_float32_on_request() -> None:
    network = random_network(2, hard=False, piecewise=False)
    x = np.random.default_rng(3).normal(size=(70, 4, 3))
    single = network(x, dtype=np.float32)
    gap = np.abs(single - network(x)).max() / np.abs(network(x)).max()
    assert 0 < gap < 1e-3
    y = np.array([[0.2], [0.8]])
    constructed = ef.construct(reverse(2, 1), grid=2).network
    with pytest.raises(NumberKindError, match="ramps are 9e-10 wide; float32 has 24"):
        constructed(y, dtype="float32")
    with pytest.raises(NumberKindError, match="does not exist"):
        constructed(y, dtype=np.float16)
    with pytest.raises(NumberKindError, match="does not exist"):
        network(x, dtype=np.float32, executor="reference")


def test_what_an_executor_cannot_run_is_refused() -> None:
    exact = ef.construct(
        centring(2, 1), grid=3, method=ef.SelectiveShifts(softened=False)
    ).network
    x = np.array([[0.1], [0.9]])
    assert "exact" in exact.explain()
    for name in ("literal", "folded", "reference"):
        with pytest.raises(NumberKindError, match="are rationals"):
            exact(x, executor=name)  # type: ignore[arg-type]
    assert np.array_equal(exact(x, executor="exact"), exact(x))
    soft = ef.construct(centring(2, 1), grid=4).network
    with pytest.raises(NumberKindError, match="needs hardmax"):
        soft(x, executor="exact")


@pytest.mark.unhooked
def test_an_unknown_executor_is_refused() -> None:
    soft = ef.construct(centring(2, 1), grid=4).network
    with pytest.raises(ValueError, match="executor='warp' does not exist"):
        soft(np.zeros((2, 1)), executor="warp")  # type: ignore[arg-type]


def test_explain() -> None:
    network = ef.construct(centring(2, 1), grid=8).network
    text = network.explain()
    assert text.startswith("literal: all 135 blocks, in order")
    assert "executor='folded' is faster" in text
    assert network.explain(device="cuda:0").count("the GPU, where x lies") == 1
    assert network.explain("reference").startswith("reference: all 135 blocks, one by one")
    assert network.explain("folded").startswith("folded: rounding")


def swapped(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed[[2, 5]] = changed[[5, 2]]
    return changed


TAMPERINGS: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "b_Q": ("selective shifts", "b_Q", lambda a: a + 1 / 1024),
    "order of the sweep": ("selective shifts", "b_Q", lambda a: a[::-1].copy()),
    "W_V": ("selective shifts", "W_V", lambda a: a * 2),
    "coefficient": ("selective shifts", "W_O", lambda a: a * 2),
    "last bias": ("global shift", "b_Q", lambda a: a + 1),
    "ids": ("ids to codes", "b_1", swapped),
    "window": ("ids to codes", "b_1", lambda a: a + np.array([0, 0, 0, 1e-3])),
    "change": ("ids to codes", "W_2", lambda a: a * np.array([1, 1, 1, 2])),
    "a code": ("ids to codes", "W_2", lambda a: a * 1.5),
    "quantiser": ("quantise", "b_1", lambda a: a + 1 / 32),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_folding_refuses_what_was_not_constructed(name: str) -> None:
    network = ef.construct(soft_attention(3, 1), grid=8).network
    stage_name, weight, change = TAMPERINGS[name]
    names = [stage.name for stage in network.stages]
    index = names.index(stage_name)
    half = "attention" if network.stages[index].attention is not None else "feed_forward"
    arrays = dict(network.arrays())
    key = f"stages.{index}.{half}.{weight}"
    arrays[key] = change(arrays[key])
    with pytest.raises(NotFoldableError, match=r"cannot be folded.*executor='literal'"):
        network.with_arrays(arrays)(np.zeros((1, 3, 1)), executor="folded")


@pytest.mark.parametrize(
    ("stage_name", "change"),
    [
        ("position layer", {"gain": np.zeros((1, 2, 5))}),
        ("selective shifts", {"gain": np.ones((12, 2, 5))}),
        ("global shift", {"b_V": np.ones((1, 2, 1))}),
    ],
)
def test_folding_refuses_a_gain_that_was_not_constructed(
    stage_name: str, change: dict[str, np.ndarray]
) -> None:
    network = ef.construct(reverse(3, 1), grid=4, method="urpe").network
    stages = list(network.stages)
    index = [stage.name for stage in stages].index(stage_name)
    stack = stages[index].attention
    assert stack is not None
    stages[index] = replace(stages[index], attention=replace(stack, **change))
    changed = replace(network, stages=tuple(stages))
    with pytest.raises(NotFoldableError, match="cannot be folded"):
        changed(np.zeros((1, 3, 1)), executor="folded")


def test_folding_refuses_other_networks() -> None:
    with pytest.raises(NotFoldableError, match="does not say how"):
        random_network(0, hard=False, piecewise=False)(np.zeros((4, 3)), executor="folded")
    tiny = ef.construct(reverse(2, 1), grid=2).network  # one pass: there are no codes
    with pytest.raises(NotFoldableError, match="no stage ids to codes"):
        tiny(np.zeros((2, 1)), executor="folded")


def test_progress_and_errors_come_through_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    network = ef.construct(centring(2, 1), grid=8).network
    seen: list[tuple[str, int, int]] = []

    def note(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))

    network(np.zeros((500, 2, 1)), note)
    assert seen[-1][1:] == (8, 8)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        network(np.zeros((500, 2, 1)), fail)
    monkeypatch.setattr(cpu, "kernel_for", fail)
    with pytest.raises(KeyboardInterrupt):
        network(np.zeros((500, 2, 1)))


def test_every_set_of_columns_through_the_literal_network() -> None:
    built = ef.construct(soft_attention(4, 1), grid=16)
    x = grid_plan(built.plan).shape.centres(table_of(built).columns)
    assert np.abs(built.network(x) - table_of(built).values).max() <= 1e-9


def test_compiled_code_is_kept_between_processes(tmp_path: Path) -> None:
    """The second process compiles nothing: it finds all kernels on disk."""
    program = (
        "import numpy as np, everyformer as ef\n"
        "from everyformer.model.execute import cpu\n"
        "kernels, jit = [], cpu._jit\n"
        "cpu._jit = lambda function: kernels.append(jit(function)) or kernels[-1]\n"
        "network = ef.construct(ef.targets.centring(2, 1), grid=8).network\n"
        "network(np.zeros((70, 2, 1)))\n"
        "counts = [(sum(k.stats.cache_hits.values()), sum(k.stats.cache_misses.values()))"
        " for k in kernels]\n"
        "print(len(counts), *(sum(column) for column in zip(*counts)))\n"
    )
    own = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    runs = [run_program(sys.executable, "-c", program, env=own) for _ in range(2)]
    (count, hits, misses), second = (map(int, run.stdout.split()) for run in runs)
    assert (hits, misses) == (0, count)
    assert count > 0
    assert list(second) == [count, count, 0]
