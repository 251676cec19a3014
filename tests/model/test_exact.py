"""The integer pass against Fractions: int64, beyond int64, ties, ReLU and Phi."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.plans import grid_plan

import everyformer as ef
from everyformer.model import exact
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.forward import run_stages
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.numerics.rationals import exact_array


def random_network(
    seed: int, size: int, d_head: int, piecewise: bool, urpe: tuple[str, ...] = ()
) -> ef.Network:
    """A hardmax network with small rationals times 2^size; ties are frequent."""
    rng = np.random.default_rng(seed)
    L, n, d, h, r = 3, 3, 2, 2, 2

    def draw(*shape: int) -> np.ndarray:
        top = rng.integers(-3, 4, shape).astype(object) * 2 ** int(rng.integers(size + 1))
        return exact_array(top * Fraction(1, int(rng.choice([1, 2, 3]))))

    attention = AttentionStack(
        draw(L, h, d_head, d),
        draw(L, h, d_head),
        draw(L, h, d_head, d),
        draw(L, h, d_head, d),
        draw(L, h, d, d_head),
        b_V=draw(L, h, d_head) if "b_V" in urpe else None,
        gain=draw(L, h, 2 * n - 1) if "gain" in urpe else None,
    )
    phi = None
    if piecewise:
        slopes = draw(L, r, 3)
        slopes[..., int(rng.integers(3))] = 0
        first = draw(L, r, 1)
        phi = PiecewiseLinear(
            breaks=np.concatenate([first, first + 2], axis=-1),
            closed=rng.random((L, r, 2)) < 0.5,
            slopes=slopes,
            intercepts=draw(L, r, 3),
        )
    layers = FeedForwardStack(draw(L, r, d), draw(L, r), draw(L, d, r), draw(L, d), phi)
    kind: Any = "piecewise-linear" if piecewise else "relu"
    spec = ArchitectureSpec(n, d, h, d_head, r, "hardmax", kind, positional=True)
    stages = (
        Stage("feed-forward", "test", None, layers),
        Stage("attention", "test", attention),
        Stage("both", "test", attention, layers),
    )
    return ef.Network(spec, stages, draw(n, d))


def naive(network: ef.Network, x: np.ndarray) -> np.ndarray:
    assert network.positions is not None
    state = x + network.positions
    for _, after in run_stages(network.stages, state, "hardmax"):
        state = after
    return state


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0, 5, 20, 40]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([(), ("gain",), ("b_V",), ("gain", "b_V")]),
)
def test_integers_equal_fractions(
    seed: int, size: int, d_head: int, phi: bool, urpe: tuple[str, ...]
) -> None:
    network = random_network(seed, size, d_head, phi, urpe)
    rng = np.random.default_rng(seed)
    x = exact_array(rng.integers(-2, 3, (4, 3, 2)).astype(object) * Fraction(1, 6))
    result = network.exact(x)
    assert (result == naive(network, x)).all()
    assert all(isinstance(v, int | Fraction) for v in result.flat)
    assert (network.trace(x)[-1].state == result).all()


def test_int64_is_used_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The contextual map of a Theorem 2 network never leaves int64."""
    used: list[np.dtype[Any]] = []
    original = exact._int64_block  # pyright: ignore[reportPrivateUsage]

    def spy(stage: Stage, block: int, state: np.ndarray) -> np.ndarray | None:
        used.append(state.dtype)
        return original(stage, block, state)

    monkeypatch.setattr(exact, "_int64_block", spy)
    built = ef.construct(
        ef.targets.centring(2, 1), grid=8, method=ef.SelectiveShifts(softened=False)
    )
    grid = grid_plan(built.plan).shape
    x = exact_array(grid.digits(grid.distinct_sets())) * Fraction(1, 8)
    shifts = tuple(s for s in built.network.stages if s.attention is not None)
    result = ef.Network(built.network.architecture, shifts).exact(x)
    assert len(used) == 9
    assert set(used) == {np.dtype(np.int64)}
    assert result.shape == x.shape


def test_multiples_keep_their_numbers() -> None:
    values = exact_array([Fraction(1, 6), 5, Fraction(-7, 4)])
    held = exact.Multiples.of(values)
    assert held.unit == 12
    assert (held.values() == values).all()
    finer = held.refined(5)
    assert finer.unit == 60
    assert (finer.values() == values).all()
    whole = exact.Multiples(np.array([8, 12], dtype=np.int64), 8).refined(1)
    assert whole.unit == 2
    huge = exact.Multiples(np.array([2**61], dtype=np.int64), 1).refined(3)
    assert huge.numbers.dtype == object
    assert huge.values().tolist() == [2**61]
    assert exact.Multiples.of(exact_array([])).refined(7).values().shape == (0,)
