"""Rescaled weights: the same function in real arithmetic, and another one in float64."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certify.tampered import write_weights

import everyformer as ef
from everyformer import patterns
from everyformer.certify.overflow import REACH, after_attention, after_feed_forward
from everyformer.certify.weights import StageWeights
from everyformer.model.forward import attention_layer, feed_forward_layer
from everyformer.model.stacks import AttentionStack, FeedForwardStack
from everyformer.targets import GALLERY

Arrays = dict[str, np.ndarray]


@cache
def built(kind: str) -> ef.Built:
    """Small networks of the constructions that are proved without prefix tokens."""
    if kind == "averaging":
        return ef.construct(GALLERY["reverse"](2, 1), grid=4, method="averaging")
    if kind == "sparse":
        return ef.construct(
            GALLERY["reverse"](3, 1), grid=2, method=ef.SparseShifts(patterns.star(3))
        )
    if kind == "urpe":
        return ef.construct(GALLERY["reverse"](2, 1), grid=4, method="urpe")
    name = {"theorem 2": "centring", "theorem 3": "reverse"}[kind]
    return ef.construct(GALLERY[name](2, 1), grid=4)


def verified(kind: str, arrays: Arrays, folder: Path) -> ef.Verification:
    """The verdict on other weights under the same claim."""
    built(kind).save(folder)
    write_weights(folder, built(kind).network.with_arrays(arrays))
    return ef.verify(folder)


def arrays_of(kind: str) -> Arrays:
    return {name: array.copy() for name, array in built(kind).network.arrays()}


def prefix_of(kind: str, stage: str) -> str:
    return f"stages.{[s.name for s in built(kind).network.stages].index(stage)}."


def distance_sampled(kind: str, arrays: Arrays) -> float:
    """d_2(f, g) at random points of [0, 1]."""
    target = built(kind).target
    x = np.random.default_rng(0).random((4000, target.seq_len, target.d_model))
    gap = built(kind).network.with_arrays(arrays)(x) - target(x)
    return float(np.sqrt(np.square(gap).sum(axis=(1, 2)).mean()))


# Underflow.


def rescaled(x: int, unit: int, code: int, head: int, total: int, later: int) -> Arrays:
    """Registers, hidden units and the head in units of powers of two.

    In real arithmetic nothing changes.
    """
    registers = np.array([x, code, total, total, 0])  # the last is the output
    first = prefix_of("averaging", "digits") + "feed_forward."
    second = prefix_of("averaging", "sum and look-up")
    exponents = {
        "registers.W_in": registers[:, None],
        "registers.start": registers,
        "registers.W_out": -registers,
        f"{second}attention.W_V": head - registers,
        f"{second}attention.W_O": (registers - head)[:, None],
    }
    for place, hidden in ((first, unit), (f"{second}feed_forward.", later)):
        exponents[place + "W_1"] = hidden - registers
        exponents[place + "b_1"] = np.array(hidden)
        exponents[place + "W_2"] = (registers - hidden)[:, None]
        exponents[place + "b_2"] = registers
    arrays = arrays_of("averaging")
    for name, by in exponents.items():
        arrays[name] = np.ldexp(arrays[name], by)
    assert max(np.abs(array).max() for array in arrays.values()) < 2.0**200
    return arrays


def chain(exponent: int) -> Arrays:
    """Units of 2^exponent, then 2^(exponent + 175) and so on: no weight is above 2^200."""
    return rescaled(*(min(0, exponent + 175 * k) for k in range(6)))


@pytest.mark.parametrize("exponent", [-3, -200, -400])
def test_registers_in_other_units(exponent: int, tmp_path: Path) -> None:
    found = verified("averaging", chain(exponent), tmp_path)
    assert found.verdict is ef.Verdict.PROVED, found.reasons


def test_registers_that_underflow(tmp_path: Path) -> None:
    """x in units of 2^-1072 has five values: in float64 the network is another one."""
    arrays = chain(-1072)
    found = verified("averaging", arrays, tmp_path)
    assert found.certificate.eps is not None
    assert distance_sampled("averaging", arrays) > float(found.certificate.eps)
    assert found.verdict is ef.Verdict.UNKNOWN
    assert found.bound is not None
    assert found.bound <= found.certificate.eps


def test_registers_that_are_too_large(tmp_path: Path) -> None:
    assert (
        verified("averaging", rescaled(0, 20, 100, 0, 0, 0), tmp_path).verdict
        is ef.Verdict.PROVED
    )
    found = verified("averaging", rescaled(0, 20, 199, 0, 0, 0), tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN
    assert "registers may exceed 2^200" in found.reasons[0]


# Overflow on the ramps.


def inserted(arrays: Arrays, prefix: str, layers: Arrays) -> Arrays:
    """More layers before those of a stage."""
    more = {
        prefix + name: np.concatenate([added, arrays[prefix + name]])
        for name, added in layers.items()
    }
    return arrays | more


def growing(kind: str, low: float, high: float, count: int = 40) -> Arrays:
    """A token between low and high, where no id is, is thrown up; then everything grows.

    The first layer shifts it by 2^35 (max - min); the others add 2^35 (max - min) to every
    token above 2^30. On plateaus all of them do nothing.
    """
    stage = "chain shifts" if kind == "sparse" else "selective shifts"
    prefix, arrays = prefix_of(kind, stage) + "attention.", arrays_of(kind)
    one = np.ones((count + 1, 2, 1, 1))
    W_Q, b_Q = one.copy(), np.full((count + 1, 2, 1), 2.0**30)
    W_Q[1:, 1], b_Q[1:, 1] = 0, 1
    b_Q[0, :, 0] = low, high
    layers = {"W_Q": W_Q, "b_Q": b_Q, "W_K": one * 2.0**30, "W_V": one}
    layers["W_O"] = 2.0**35 * one * np.array([1, -1])[:, None, None]
    for name, fill in (("gain", 1.0), ("b_V", 0.0), ("mask", True)):
        if prefix + name in arrays:
            old = arrays[prefix + name]
            layers[name] = np.full((count + 1, *old.shape[1:]), fill, dtype=old.dtype)
    return inserted(arrays, prefix, layers)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("theorem 2", 5 / 16, 7 / 16),
        ("theorem 3", 5 / 16, 7 / 16),
        ("urpe", 5 / 16, 7 / 16),
        ("sparse", 1 / 8, 3 / 8),
    ],
)
def test_a_run_that_overflows_on_the_ramps(
    kind: str, low: float, high: float, tmp_path: Path
) -> None:
    arrays = growing(kind, low, high)
    network, n = built(kind).network.with_arrays(arrays), built(kind).target.seq_len
    x = np.full((n, 1001, n, 1), 0.1)
    for j in range(n):  # one of them has position 0
        x[j, :, j, 0] = 0.5 + np.linspace(-1, 1, 1001) * 2.0**-28
    with np.errstate(all="ignore"):
        assert np.isnan(network(x)).any()
    found = verified(kind, arrays, tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN
    assert any("does not overflow on the ramps" in reason for reason in found.reasons)
    assert found.certificate.eps is not None
    assert found.bound is not None
    assert found.bound <= found.certificate.eps


def test_layers_that_overflow_on_a_plateau(tmp_path: Path) -> None:
    """States of the first cell go to -2^1200, and back to 0."""
    prefix = prefix_of("theorem 3", "quantise") + "feed_forward."
    W_1, b_1, W_2 = np.zeros((21, 4, 1)), np.zeros((21, 4)), np.zeros((21, 1, 4))
    W_1[:, 0], b_1[:-1, 0] = -1, 0.25
    W_2[:-1, 0, 0], W_2[-1, 0, 0] = -(2.0**60), 1
    layers = {"W_1": W_1, "b_1": b_1, "W_2": W_2, "b_2": np.zeros((21, 1))}
    arrays = inserted(arrays_of("theorem 3"), prefix, layers)
    with np.errstate(all="ignore"):
        y = built("theorem 3").network.with_arrays(arrays)(np.full((1, 2, 1), 0.1))
    assert not np.isfinite(y).all()
    assert verified("theorem 3", arrays, tmp_path).verdict is ef.Verdict.UNKNOWN


# What does no harm.


def scaled_scores(kind: str, factor: float) -> Arrays:
    stage = "chain shifts" if kind == "sparse" else "selective shifts"
    prefix, arrays = prefix_of(kind, stage) + "attention.", arrays_of(kind)
    for name, by in (("W_Q", factor), ("b_Q", factor), ("W_K", 1 / factor)):
        arrays[prefix + name] *= by
    return arrays


def scaled_windows(kind: str, factor: float) -> Arrays:
    prefix, arrays = prefix_of(kind, "value map") + "feed_forward.", arrays_of(kind)
    for name, by in (("W_1", factor), ("b_1", factor), ("W_2", 1 / factor)):
        arrays[prefix + name] *= by
    return arrays


@pytest.mark.parametrize("kind", ["theorem 2", "theorem 3", "urpe", "sparse"])
@pytest.mark.parametrize("scaled", [scaled_scores, scaled_windows])
def test_a_harmless_factor(
    kind: str, scaled: Callable[[str, float], Arrays], tmp_path: Path
) -> None:
    found = verified(kind, scaled(kind, 8.0), tmp_path)
    assert found.verdict is ef.Verdict.PROVED, found.reasons


@pytest.mark.parametrize("exponent", [-1000, -540, 540])
@pytest.mark.parametrize("scaled", [scaled_scores, scaled_windows])
def test_factors_that_leave_float64(
    scaled: Callable[[str, float], Arrays], exponent: int, tmp_path: Path
) -> None:
    found = verified("theorem 3", scaled("theorem 3", 2.0**exponent), tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN


# The bound on the state, for every input.


NUMBERS = st.integers(-60, 60).map(lambda k: float(np.sign(k)) * 2.0 ** abs(k)) | st.floats(
    -8, 8, width=16
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_states_stay_within_the_bound(data: st.DataObject) -> None:
    """Windows with steep sides, clamps, rows at random; inputs of all sizes."""
    d, layers = data.draw(st.integers(1, 2)), 12
    row = [1.0, 4.0][:d]
    signs = np.array(data.draw(st.sampled_from([[1, -1, -1, 1], [1, 1, -1, -1]])))
    numbers = st.lists(NUMBERS, min_size=4, max_size=4)
    b_1 = np.array([data.draw(numbers) for _ in range(layers)])
    W_1 = np.broadcast_to(np.array(row), (layers, 4, d)).copy()
    if data.draw(st.booleans()):
        W_1[:, 2:] *= -1
    W_2 = np.array([data.draw(numbers)[:d] for _ in range(layers)])[..., None] * signs
    size = 2.0 ** data.draw(st.integers(-10, 120))
    arrays = {"W_1": W_1, "b_1": b_1, "W_2": W_2, "b_2": np.zeros((layers, d))}
    bound = after_feed_forward(StageWeights("any", "feed_forward", arrays), size)
    x = np.random.default_rng(0).uniform(-size, size, (500, 1, d))
    x[:100] *= 2.0 ** -np.arange(100.0)[:, None, None]
    stack = FeedForwardStack(W_1, b_1, W_2, arrays["b_2"])
    for layer in range(layers):
        x = feed_forward_layer(stack, layer, x)
    assert np.abs(x).max() <= bound


@pytest.mark.parametrize("lam", [2.0**10, 2.0**40])
def test_shifts_stay_within_the_bound(lam: float) -> None:
    """300 layers, each multiplying by 129 at most: not by 129^300."""
    layers, n = 300, 3
    one = np.ones((layers, 2, 1, 1))
    b_Q = (np.arange(layers)[:, None] + np.array([0.25, 0.75]))[..., None] / layers
    W_O = 64 * one * np.array([1, -1])[:, None, None]
    arrays = {"W_Q": one, "b_Q": b_Q, "W_K": lam * one, "W_V": one, "W_O": W_O}
    bound = after_attention(StageWeights("any", "attention", arrays), 1.0, n)
    assert bound < 2.0**40 < REACH < 129.0**100
    x = np.random.default_rng(0).random((1000, n, 1))
    for layer in range(layers):
        x = attention_layer(AttentionStack(**arrays), layer, x, "softmax")
    assert 1000 < np.abs(x).max() <= bound
