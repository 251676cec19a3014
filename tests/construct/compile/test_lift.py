"""Programs written with numpy become steps by tokens that compute the same."""

import importlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.construct.compile.interpret import count, interpret

from everyformer.construct.compile.lifting.lift import lift
from everyformer.construct.compile.program import Attend, Form, Mean, Normalise, Program
from everyformer.errors import ExpressionError, TargetError
from everyformer.targets import GALLERY
from everyformer.targets.recorder import Recorder
from everyformer.targets.target import Target
from everyformer.targets.traced_array import Lines, Traced

Function = Callable[[Any], Any]
RNG = np.random.default_rng(0)
W_IN, W_OUT = RNG.normal(size=(3, 5)), RNG.normal(size=(5, 3))
W_Q, W_K, W_V, W_O = (RNG.normal(size=(3, 3)) / 2 for _ in range(4))
TABLE = RNG.normal(size=(8, 3))
SIXTEENTHS = RNG.integers(-8, 9, (3, 3)) / 16


def error(program: Program, target: Target, low: float = 0, high: float = 1) -> float:
    """The largest difference at random points, relative above 1."""
    shape = 40, target.seq_len, target.d_model
    x = np.random.default_rng(7).uniform(low, high, shape)
    wanted = target(x)
    return float((np.abs(interpret(program, x) - wanted) / (1 + np.abs(wanted))).max())


def recorded(function: Function, n: int, d: int, low: float = 0) -> Target:
    """A target whose lines are written down without comparing them: that is done here."""
    target = Target(function, n, d, domain=[(low, 1)])
    recorder = Recorder()
    outputs = Lines(recorder).lift(function(Traced.entries(recorder, n, d)))
    vars(target)["_traced"] = recorder.expression(n, d, outputs[0].tolist()), None
    return target


def lifted(function: Function, n: int = 4, d: int = 3) -> Program:
    """The program of a function, compared with it."""
    target = recorded(function, n, d)
    program = lift(target)
    assert error(program, target) <= 1e-12
    return program


def keep(x: Any) -> Any:
    return x.mean(-2, keepdims=True) + 0 * x


def softmax(scores: Any, *, stable: bool = True) -> Any:
    weights = np.exp(scores - scores.max(-1, keepdims=True) if stable else scores)
    return weights / weights.sum(-1, keepdims=True)


def distances(x: Any) -> Any:
    return -((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(-1)


def soft(x: Any) -> Any:
    return softmax(distances(x), stable=False) @ x


def soft_other(x: Any) -> Any:
    scores = distances(x)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights @ x) / weights.sum(-1, keepdims=True)


def dot(x: Any) -> Any:
    scores = x @ W_Q @ np.swapaxes(x, -1, -2) / np.sqrt(x.shape[-1])
    return softmax(scores) @ (x @ W_V)


def causal(x: Any) -> Any:
    weights = np.exp(x @ np.swapaxes(x, -1, -2) / 3) * np.tril(np.ones((x.shape[-2],) * 2))
    return (weights / weights.sum(-1, keepdims=True)) @ x


def summed(x: Any) -> Any:
    return np.exp(x @ np.swapaxes(x, -1, -2) / 3) @ (x + 0.5)


def summed_causally(x: Any) -> Any:
    n = x.shape[-2]
    biases = -0.25 * np.abs(np.arange(n)[:, None] - np.arange(n))
    return (np.exp(x @ np.swapaxes(x, -1, -2) + biases) * np.tri(n)) @ x


def summed_by_distance(x: Any) -> Any:
    gaps = x[..., :, None, :] - x[..., None, :, :]
    return np.exp(-(gaps**2).sum(axis=-1)) @ x


def triangle(x: Any) -> Any:
    return np.tril(np.ones((x.shape[-2],) * 2))


def causal_sum(x: Any) -> Any:
    weights = np.exp(x @ np.swapaxes(x, -1, -2) / 3) * triangle(x)
    return (weights @ x) / weights.sum(-1, keepdims=True)


def causal_where(x: Any) -> Any:
    weights = np.where(triangle(x) > 0, np.exp(x @ np.swapaxes(x, -1, -2)), 0)
    return (weights @ x) / weights.sum(-1, keepdims=True)


def band_filled(x: Any) -> Any:
    places = np.arange(x.shape[-2])
    near = np.abs(places[:, None] - places) <= 1
    return softmax(np.where(near, x @ np.swapaxes(x, -1, -2) / 3, -1e9)) @ x


def causal_soft(x: Any) -> Any:
    weights = np.exp(distances(x)) * triangle(x)
    return (weights @ x) / weights.sum(-1, keepdims=True)


def window(x: Any) -> Any:
    near = np.abs(np.subtract.outer(*[np.arange(x.shape[-2])] * 2)) <= 1
    weights = np.exp(x @ np.swapaxes(x, -1, -2)) * near
    return (weights @ x) / weights.sum(-1, keepdims=True)


def weights_of(x: Any) -> Any:
    return softmax(x @ np.swapaxes(x, -1, -2), stable=False)


def nested_clip(x: Any) -> Any:
    return np.where(x < 0.25, 0.25, np.where(x > 0.75, 0.75, x))


def clip_by_both(x: Any) -> Any:
    inside = (x > 0.25) & (x < 0.75)
    return np.where(inside, x, np.where(x >= 0.75, 0.75, 0.25))


def arch(x: Any) -> Any:
    return np.where((x > 0.25) & (x < 0.75), (x - 0.25) * (0.75 - x), 0)


def masked(x: Any) -> Any:
    mask = np.triu(np.full((x.shape[-2],) * 2, -1e4), 1)
    return softmax(x @ np.swapaxes(x, -1, -2) / 3 + mask) @ x


def causal_loop(x: Any) -> Any:
    rows: list[Any] = []
    for j in range(x.shape[-2]):
        weights = np.exp((x[..., j : j + 1, :] * x[..., : j + 1, :]).sum(-1))
        weights = weights / weights.sum(-1, keepdims=True)
        rows.append((weights[..., None] * x[..., : j + 1, :]).sum(-2))
    return np.stack(rows, axis=-2)


def differences(x: Any) -> Any:
    weights = softmax(x @ np.swapaxes(x, -1, -2))
    return (weights[..., None] * (x[..., None, :, :] - x[..., :, None, :])).sum(-2)


def layer_norm(x: Any) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c**2).mean(-1, keepdims=True) + 1 / 128)


def token_norm(x: Any) -> Any:
    c = x - x.mean(-2, keepdims=True)
    return c / np.sqrt((c**2).mean(-2, keepdims=True) + 1 / 128)


def block(x: Any) -> Any:
    h = layer_norm(x)
    scores = (h @ W_Q[:, :2]) @ np.swapaxes(h @ W_K[:, :2], -1, -2) / np.sqrt(2)
    y = x + softmax(scores) @ (h @ W_V) @ W_O
    return y + np.tanh(layer_norm(y) @ W_IN) @ W_OUT


def heads(x: Any) -> Any:
    total = 0
    for part in (slice(0, 1), slice(1, 3)):
        scores = (x @ W_Q[:, part]) @ np.swapaxes(x @ W_K[:, part], -1, -2)
        total = total + softmax(scores) @ (x @ W_V[:, part]) @ W_O[part]
    return total


def loop(x: Any) -> Any:
    rows = [x[..., 0, :]]
    for j in range(1, x.shape[-2]):
        rows.append(0.5 * rows[-1] + x[..., j, :])
    return np.stack(rows, axis=-2)


def huber(x: Any) -> Any:
    t = np.abs(x - 0.5)
    return np.where(t < 0.25, (x - 0.5) ** 2 / 2, 0.25 * (t - 0.125))


def huber_by_products(x: Any) -> Any:
    t = x - 0.5
    return np.where(np.abs(t) < 0.25, 0.5 * t * t, 0.25 * (np.abs(t) - 0.125))


def elu(x: Any) -> Any:
    return np.where(x > 0.5, x - 0.5, np.exp(x - 0.5) - 1)


def ramp(x: Any) -> Any:
    return (x > 0.5) * (x - 0.5) + (x <= 0.5) * 0.1 * (x - 0.5)


def manual_sort(x: Any) -> Any:
    rows = [x[..., k, :] for k in range(x.shape[-2])]
    for last in range(len(rows) - 1, 0, -1):
        for k in range(last):
            pair = rows[k], rows[k + 1]
            rows[k], rows[k + 1] = np.minimum(*pair), np.maximum(*pair)
    return np.stack(rows, axis=-2)


STEPS: dict[str, tuple[Function, dict[str, int]]] = {
    "centring": (lambda x: x - x.mean(-2, keepdims=True), {"Mean": 3}),
    "roll": (lambda x: np.roll(x, 1, -2), {"Gather": 3}),
    "reverse": (lambda x: x[..., ::-1, :], {"Gather": 3}),
    "neighbours": (lambda x: x - np.roll(x, 1, -2), {"Gather": 3}),
    "prefix mean": (
        lambda x: np.cumsum(x, -2) / np.arange(1, 5)[:, None],
        {"Mix": 3},
    ),
    "cumsum of tanh": (lambda x: np.cumsum(np.tanh(x), -2), {"Mix": 3, "Unary": 3}),
    "matmul": (lambda x: x @ W_Q + x @ SIXTEENTHS, {}),
    "einsum": (lambda x: np.einsum("bni,ij->bnj", x, W_Q), {}),
    "concatenate": (
        lambda x: np.concatenate([x[..., 1:, :], x[..., :1, :]], -2) * x,
        {"Gather": 3, "Product": 3},
    ),
    "loop": (loop, {"Mix": 3}),
    "positions": (lambda x: x + TABLE[:4], {}),
    "factors": (lambda x: x * np.arange(4)[:, None], {"Scale": 3}),
    "where on positions": (
        lambda x: np.where(np.arange(4)[:, None] > 0, x, 0),
        {"Scale": 3},
    ),
    "max": (lambda x: x.max(-2, keepdims=True) - x, {"Gather": 6, "Maximum": 6}),
    "min": (lambda x: x.min(-2, keepdims=True) + 0 * x, {"Gather": 6, "Minimum": 6}),
    "prefix max": (
        lambda x: np.maximum.accumulate(x, -2),
        {"Gather": 6, "Maximum": 6},
    ),
    "sort": (lambda x: np.sort(x, -2), {"Exchange": 12}),
    "sort of a sum": (lambda x: np.sort(x @ W_Q + TABLE[:4], -2), {"Exchange": 12}),
    "median": (
        lambda x: x - np.sort(x, -2)[..., 2:3, :],
        {"Exchange": 12, "Gather": 3},
    ),
    "sort, and its own": (
        lambda x: np.minimum(np.sort(x, -2), x),
        {"Exchange": 12, "Minimum": 3},
    ),
    "sort coordinates": (lambda x: np.sort(x, -1), {"Maximum": 3, "Minimum": 3}),
    "relu": (lambda x: np.maximum(x - 0.5, 0), {"Relu": 3}),
    "relu by where": (lambda x: np.where(x > 0.5, x - 0.5, 0), {"Relu": 3}),
    "relu by a product": (lambda x: (x - 0.5) * (x > 0.5), {"Relu": 3}),
    "clip": (lambda x: np.clip(x, 0.25, 0.75), {"Relu": 6}),
    "clip by nested choices": (nested_clip, {"Relu": 6}),
    "clip by two conditions": (clip_by_both, {"Relu": 6}),
    "three pieces": (
        lambda x: np.where(x > 0.75, x - 0.5, np.where(x > 0.25, (x - 0.25) / 2, 0)),
        {"Relu": 6},
    ),
    "arch": (arch, {"Product": 3, "Relu": 6}),
    "abs": (lambda x: np.abs(x - 0.5), {"Absolute": 3}),
    "leaky": (lambda x: np.where(x > 0.5, x - 0.5, 0.1 * (x - 0.5)), {"Relu": 3}),
    "leaky by products": (ramp, {"Relu": 3}),
    "elu": (elu, {"Relu": 6, "Unary": 3}),
    "huber": (huber, {"Absolute": 3, "Relu": 6, "Unary": 3}),
    "huber by products": (huber_by_products, {"Absolute": 3, "Relu": 6, "Unary": 3}),
    "tanh layer": (
        lambda x: np.tanh(x @ W_IN) @ W_OUT + x.mean(-2, keepdims=True),
        {"Mean": 3, "Unary": 5},
    ),
    "product": (lambda x: x[..., :1] * x[..., 1:2] + x, {"Product": 1}),
    "soft attention": (soft, {"Attend": 3, "Unary": 3}),
    "soft attention, stable": (soft_other, {"Attend": 3, "Unary": 3}),
    "dot-product attention": (dot, {"Attend": 3}),
    "causal attention": (causal, {"Attend": 3}),
    "without a denominator": (summed, {"ExponentialSum": 3}),
    "without a denominator, causal": (summed_causally, {"ExponentialSum": 3}),
    "without a denominator, by distance": (
        summed_by_distance,
        {"ExponentialSum": 3, "Unary": 3},
    ),
    "causal attention, divided last": (causal_sum, {"Attend": 3}),
    "causal attention by where": (causal_where, {"Attend": 3}),
    "a band, other scores -1e9": (band_filled, {"Attend": 3}),
    "causal attention by distance": (causal_soft, {"Attend": 3, "Unary": 3}),
    "attention to neighbours": (window, {"Attend": 3}),
    "attention to x + 1/2": (lambda x: weights_of(x) @ (x + 0.5), {"Attend": 3}),
    "1 - weights": (lambda x: x + (1 - weights_of(x).sum(-1, keepdims=True)), {}),
    "masked attention": (masked, {"Attend": 3}),
    "causal loop": (causal_loop, {"Attend": 3}),
    "attention to differences": (differences, {"Attend": 3}),
    "two heads": (heads, {"Attend": 3}),
    "layer norm": (layer_norm, {"Normalise": 3}),
    "norm over tokens": (token_norm, {"Mean": 6, "Product": 3, "Unary": 6}),
    "pre-LN block": (block, {"Attend": 3, "Normalise": 6, "Unary": 5}),
    "block with positions": (
        lambda x: block(x + TABLE[:4]),
        {"Attend": 3, "Normalise": 6, "Unary": 5},
    ),
    "waves": (
        lambda x: np.sin(3 * x) + np.cos(x.mean(-2, keepdims=True)),
        {"Mean": 3, "Unary": 6},
    ),
    "quotient": (
        lambda x: x / (1 + (x**2).mean(-2, keepdims=True)),
        {"Mean": 3, "Product": 3, "Unary": 6},
    ),
    "exp and log": (lambda x: np.exp(-x) * np.log(1 + x), {"Product": 3, "Unary": 6}),
    "logistic": (lambda x: 1 / (1 + np.exp(-x)), {"Unary": 3}),
    "logistic, other": (lambda x: np.exp(x) / (1 + np.exp(x)), {"Unary": 3}),
    "logistic by tanh": (lambda x: (1 + np.tanh(x / 2)) / 2, {"Unary": 3}),
    "silu": (lambda x: x / (1 + np.exp(-x)), {"Product": 3, "Unary": 3}),
    "sqrt": (np.sqrt, {"Unary": 3}),
    "powers": (lambda x: x**3 - 2 * x**2, {"Unary": 6}),
    "softmax over coordinates": (
        lambda x: softmax(x, stable=False),
        {"Product": 3, "Unary": 4},
    ),
    "pairs": (
        lambda x: np.tanh(x[..., :, None, :] - x[..., None, :, :]).sum(-2),
        {"Gather": 9, "Unary": 9},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_function_has_these_steps(name: str) -> None:
    function, steps = STEPS[name]
    assert count(lifted(function)) == steps


@pytest.mark.parametrize("name", STEPS)
def test_every_size_agrees(name: str) -> None:
    """Also where tokens are one, or two, which leave more to guess."""
    function, _ = STEPS[name]
    if name in {"prefix mean", "positions", "factors", "where on positions", "median"}:
        return
    if name in {"sort of a sum", "block with positions"}:
        return
    for n in (1, 2):
        lifted(function, n)


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_the_gallery_is_lifted(name: str, n: int, d: int) -> None:
    target = GALLERY[name](n, d)
    assert error(lift(target), target) <= 1e-12


@pytest.mark.parametrize("n", [4, 5, 8, 11])
def test_a_product_over_tokens_takes_log_n_rounds(n: int) -> None:
    program = lifted(lambda x: x.prod(-2, keepdims=True) + 0 * x, n, 1)
    assert count(program)["Product"] <= 2 * n.bit_length() - 2


def test_tokens_may_take_a_maximum_a_minimum_or_neither() -> None:
    def mixed(x: Any) -> Any:
        a, b, c = x[..., 0, :], x[..., 1, :], x[..., 2, :]
        return np.stack([b, np.maximum(a, b), np.minimum(c, np.maximum(a, b))], -2)

    lifted(mixed, 3, 2)


def test_a_sort_written_by_hand_agrees() -> None:
    lifted(manual_sort, 3, 2)


def test_what_is_equal_is_shared() -> None:
    """Heads of one softmax have the same queries and keys; a norm is one group."""
    steps = lifted(block).steps()
    attends = [step for step in steps if isinstance(step, Attend)]
    assert len({(step.queries, step.keys) for step in attends}) == 1
    assert len({step.group for step in steps if isinstance(step, Normalise)}) == 2


def test_the_subtracted_maximum_is_not_compiled() -> None:
    names = {type(step).__name__ for step in lifted(soft_other).steps()}
    assert names == {"Input", "Unary", "Attend"}


def test_a_wrong_lift_is_seen() -> None:
    """The comparison of these tests can fail."""
    target = Target(STEPS["centring"][0], 4, 3)
    right = lift(target)
    (mean,) = [s for s in right.outputs[0] if isinstance(s, Mean)]
    wrong = Program(
        4, target.domain, (right.outputs[0] + Form.of(mean), *right.outputs[1:])
    )
    assert error(right, target) <= 1e-12 < error(wrong, target)


JUMPS: list[Function] = [
    lambda x: np.where(x > 0.5, x, 0),
    lambda x: np.where(x > 0.5, 1.0, 0.0) + x,
    lambda x: x * (x > x.mean(-2, keepdims=True)),
    lambda x: np.sign(x - 0.5),
    lambda x: np.where((x > 0.25) & (x < 0.75), 1.0, 0.0),
    lambda x: np.where((x > 0.25) & (x < 0.75), x, np.where(x >= 0.75, 0.75, 0.0)),
    lambda x: np.where((x < 0.25) | (x > 0.75), 0.0, x),
    lambda x: np.where(x < 0.25, 0.3, np.where(x > 0.75, 0.75, x)),
    lambda x: np.where(x > 0.75, x - 0.5, np.where(x > 0.25, (x - 0.25) / 3, 0)),
]


@pytest.mark.parametrize("function", JUMPS)
def test_a_function_that_jumps_is_refused(function: Function) -> None:
    text = "not seen to agree on the border: where they differ it is not continuous, and no"
    with pytest.raises(TargetError, match=text):
        lift(recorded(function, 3, 2))


def test_a_jump_by_rounding_is_told() -> None:
    """The network was built, and then it was not seen to be f."""
    text = r"differ by 1\.3e-17 on the border: .*\(3/8 for 0\.3\), or write it"
    with pytest.raises(TargetError, match=text):
        lift(recorded(lambda x: np.where(x < 0.6, 0.3, 0.9 * x - 0.24), 3, 2))


def test_a_shift_of_three_tokens_is_a_gather() -> None:
    program = lift(recorded(lambda x: np.roll(x, 1, -2), 3, 1))
    assert [type(step).__name__ for step in program.steps()] == ["Input", "Gather"]


UNDEFINED: list[tuple[Function, str]] = [
    (lambda x: 1 / x, r"divides by line 0, which may be 0 on the domain \(\[0, 1\]\)"),
    (lambda x: 1 / (x - 0.5), r"divides by line \d+, which may be 0"),
    (lambda x: np.log(x), r"takes the logarithm of line \d+, which may be 0 or less"),
    (
        lambda x: 1 / np.sqrt(x),
        r"divides by the root of line 0, which may be 0 or less",
    ),
    (lambda x: x / np.sqrt(x.mean(-2, keepdims=True)), "divides by the root of line"),
]


@pytest.mark.parametrize(("function", "text"), UNDEFINED)
def test_a_function_that_may_be_undefined_is_refused(function: Function, text: str) -> None:
    with pytest.raises(TargetError, match=text):
        lift(recorded(function, 3, 2))


def test_negative_divisors_are_allowed() -> None:
    lifted(lambda x: x / (x - 2) + (x - 3) ** -2)


def test_a_target_without_a_program_is_refused() -> None:
    with pytest.raises(ExpressionError, match="needs <lambda> as a program"):
        lift(Target(lambda x: x, 2, 1, lipschitz=1, trace=False))


def test_programs_that_are_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("everyformer.construct.compile.lifting.lift")
    monkeypatch.setattr(module, "MOST_STEPS", 5)
    with pytest.raises(TargetError, match="does not fit into registers by tokens"):
        lift(Target(lambda x: np.tanh(np.tanh(np.tanh(x))), 2, 3))


UNARY: list[Function] = [
    np.tanh, np.sin, np.abs, np.square,
    lambda x: np.maximum(x, 0), lambda x: 1 / (1 + np.exp(-x)),
    lambda x: np.sqrt(x * x + 0.5), lambda x: 1 / (1 + x * x),
    keep, lambda x: x - x.mean(-1, keepdims=True), lambda x: np.roll(x, 1, -2),
    lambda x: x[..., ::-1], lambda x: np.cumsum(x, -2),
    lambda x: x.max(-2, keepdims=True) - x, lambda x: np.maximum.accumulate(x, -2),
    lambda x: np.sort(x, -2), lambda x: np.sort(x, -1), lambda x: x @ W_Q[:2, :2],
    lambda x: W_Q @ x, lambda x: x + TABLE[:3, :2], lambda x: x * TABLE[:3, :2],
    layer_norm, token_norm, lambda x: softmax(x @ np.swapaxes(x, -1, -2)) @ x, soft,
    causal, softmax, lambda x: np.where(x > 0, x, 0.5 * x), lambda x: x - x[..., :1, :],
    lambda x: np.concatenate([np.tanh(x[..., :1, :]), x[..., 1:, :]], -2),
    lambda x: np.clip(x, -0.5, 0.5), loop,
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    np.add, np.subtract, np.multiply, np.maximum, np.minimum, lambda a, b: a / (1 + b * b),
]  # fmt: skip
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 1)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 2), st.integers(0, 2)),
)


@settings(max_examples=20, deadline=None)
@given(st.lists(OPERATIONS, min_size=3, max_size=6))
def test_random_programs_agree(operations: list[tuple[Any, ...]]) -> None:
    def run(x: Any) -> Any:
        values = [x]
        for function, *places in operations:
            values.append(function(*(values[-1 - min(k, len(values) - 1)] for k in places)))
        return values[-1]

    target = recorded(run, 3, 2, -1)
    expression = target.expression
    if expression is None or len(expression.nodes) > 2000:
        return
    try:
        program = lift(target)
    except TargetError:  # intervals of long programs are wide
        return
    assert error(program, target, -1, 1) <= 1e-9


def test_branches_of_which_nothing_is_known_are_refused() -> None:
    def other(x: Any) -> Any:
        return np.where(x[..., :1] > 0.5, x[..., ::-1], 0)

    with pytest.raises(TargetError, match="could not be shown to be equal on the border"):
        lift(recorded(other, 3, 2))


def composed(first: Function, second: Function) -> Function:
    return lambda x: second(first(x))


def test_every_pair_of_operations_agrees() -> None:
    for first, second in itertools.islice(
        itertools.product(UNARY[-10:], UNARY[:10]), 0, 100, 9
    ):
        target = recorded(composed(first, second), 3, 2, -1)
        assert error(lift(target), target, -1, 1) <= 1e-10
