"""A trace says what the function does; what it cannot say is refused by name."""

import math
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.errors import ExpressionError
from everyformer.numerics.expression import Expression
from everyformer.targets import GALLERY, recorder
from everyformer.targets.target import Target
from everyformer.targets.trace import trace

Function = Callable[[Any], Any]
N, D = 2, 3


def traced(function: Function, n: int = N, d: int = D) -> Expression:
    return trace(function, n, d, [0.5] * d, [2.0] * d)


def operations(function: Function) -> list[str]:
    """The operations of a trace of one entry, without x and constants."""
    nodes = traced(function, 1, 1).nodes
    return [node.op for node in nodes if node.op not in {"x", "const"}]


def agrees(function: Function, n: int = N, d: int = D) -> None:
    """Beyond the sequences that `trace` compares: a larger box."""
    x = np.random.default_rng(5).uniform(0.25, 3, (40, n, d))
    with np.errstate(all="ignore"):
        wanted = function(x.copy())
    assert traced(function, n, d)(x) == pytest.approx(wanted, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (4, 1)])
def test_the_gallery_is_traced(name: str, n: int, d: int) -> None:
    target = GALLERY[name](n, d)
    x = np.random.default_rng(1).random((200, n, d))
    assert target.expression is not None
    assert target.untraceable is None
    assert np.abs(target.expression(x) - target(x)).max() <= 1e-12


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_sort_is_a_network(n: int) -> None:
    counts = Counter(node.op for node in traced(lambda x: np.sort(x, axis=-2), n, 1).nodes)
    assert counts == {"x": n, "min": n * (n - 1) // 2, "max": n * (n - 1) // 2}


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_polynomials(first: list[int], second: list[int], random: Any) -> None:
    weights = [random.choice([-2, 0.1, 1 / 3, 7]) for _ in first]

    def polynomial(x: Any) -> Any:
        total = 0 * x
        for weight, k in zip(weights, first, strict=True):
            total = total + weight * x**k
        for k in second:
            total = np.maximum(total * x, k) - np.minimum(total, x[:, ::-1])
        return total

    agrees(polynomial)


def test_floats_are_the_rationals_that_they_are() -> None:
    expression = traced(lambda x: np.pi * x + Fraction(1, 3) + 0.1, 1, 1)
    values = {node.value for node in expression.nodes if node.value is not None}
    assert values == {Fraction(math.pi), Fraction(1, 3), Fraction(0.1)}


def test_constants_are_computed_exactly() -> None:
    def constants(x: Any) -> Any:
        third = np.ones_like(x) / 3
        return abs(np.minimum(-third - third, 5 * third) * 3) ** -2 + np.maximum(third, 0)

    expression = traced(constants, 1, 1)
    assert [node.value for node in expression.nodes] == [Fraction(1, 4) + Fraction(1, 3)]


def test_long_constants_stay_operations() -> None:
    def small(x: Any) -> Any:
        return np.full_like(x, 0.3) ** 64 * np.full_like(x, 0.7) ** 60

    assert "mul" in operations(small)
    agrees(small)


SIMPLER: dict[str, tuple[Function, list[str]]] = {
    "0 and 1": (lambda x: (0 + x - 0) * 1 / 1, []),
    "two signs": (lambda x: -1 * np.negative(-x), ["mul"]),
    "0 times x": (lambda x: x + 0 * x, ["mul", "add"]),
    "twice the same": (lambda x: np.maximum(x, x) ** 1 + x**0, ["add"]),
    "squares": (lambda x: x * x, ["pow"]),
    "products": (lambda x: x * x * x * x, ["pow"]),
    "order of a sum": (lambda x: (x + 1) - (1 + x), ["add", "sub"]),
    "order of a maximum": (lambda x: np.maximum(x, 1) * np.maximum(1, x), ["max", "pow"]),
    "order of a difference": (lambda x: (x - 1) * (1 - x), ["sub", "sub", "mul"]),
    "not needed": (lambda x: [np.sin(x), x][1], []),
    "choices that are maxima": (lambda x: np.where(x > 1, x, 1), ["max"]),
    "other maxima": (
        lambda x: np.where(x >= 1, x, 1) + np.where(x <= 1, 1, x),
        ["max", "add"],
    ),
    "choices that are minima": (lambda x: np.where(x > 1, 1, x), ["min"]),
    "choices that are sizes": (lambda x: np.where(x < 0, -x, x), ["neg", "abs"]),
    "other sizes": (lambda x: np.where(x >= 0, x, -x), ["neg", "abs"]),
    "negative sizes": (lambda x: np.where(x > 0, -x, x), ["abs", "neg"]),
    "choices of the same": (lambda x: np.where(x > 1, x, x), []),
    "choices of constants": (lambda x: x + np.where(np.ones_like(x) > 0, 1, 2), ["add"]),
    "two negations": (lambda x: np.where(~~(x > 1), 3, x), ["sub", "where"]),
}


@pytest.mark.parametrize("name", SIMPLER)
def test_simplifications(name: str) -> None:
    function, lines = SIMPLER[name]
    assert Counter(operations(function)) == Counter(lines)
    agrees(function)


def test_only_needed_lines_are_kept() -> None:
    expression = traced(lambda x: x[:, :1] + np.cos(x[:, 1:] ** 5)[:, :0].sum() + x, 3, 1)
    assert Counter(node.op for node in expression.nodes) == {"x": 3, "add": 3}


SMALL = np.full((D, D), 200, dtype=np.uint8)

LARGE = np.full((D, D), 2**40)


def doubled(counts: Any) -> Any:
    counts += counts
    return counts


def halves(counts: Any) -> Any:
    counts[...] = 0.5
    return counts


def beside_itself(mask: Any) -> Any:
    turned = mask[..., ::-1]
    turned[mask] = False
    return turned


REFUSED: dict[str, tuple[Function, str]] = {
    "max of Python": (lambda x: max(x[0, 0, 0], 1.0) + x, r"condition on x .*np\.where"),
    "where on x": (lambda x: np.where(x, x, 0), r"numpy\.where on a condition of numbers"),
    "where alone": (lambda x: np.where(x > 1), r"numpy\.where of one argument"),
    "a mask as an index": (lambda x: x + x[x > 1].sum(), "mask made from x"),
    "entries of a mask assigned": (lambda x: x.__setitem__(x > 1, x[:, :1]), "mask made"),
    "sums of masks": (lambda x: x + ((x > 1) + (x < 1.5)), "operation add with truth"),
    "products of masks": (lambda x: x + (x > 1) * (x < 1.5), "operation multiply with"),
    "signs of masks": (lambda x: x + -(x > 1), "operation negative with truth values"),
    "negations of numbers": (lambda x: x + ~((x > 1) * 1), "operation invert with truth"),
    "negations of sums": (lambda x: x + ~(x > 1).sum(-1, keepdims=True), "operation inv"),
    "masks as numbers": (lambda x: x + ((x > 1) == True), "operation equal with truth"),  # noqa: E712
    "masks of numbers": (lambda x: x * np.logical_and(x, x > 1), "operation logical_and"),
    "matrices of masks": (lambda x: (x > 1) @ np.eye(D, dtype=bool) + x, "matmul with"),
    "products of matrices of masks": (lambda x: np.dot(x > 1, np.eye(D) > 0), "A product"),
    "differences of masks": (lambda x: x + np.diff(x > 1, prepend=False), r"numpy\.diff"),
    "arrays like masks": (lambda x: x + np.zeros_like(x > 1), "An array like one of truth"),
    "numbers in masks": (lambda x: (x > 1).__setitem__(0, 2), "numbers to truth values"),
    "comparisons in place": (lambda x: np.greater(x, 1, out=x > 2), "operation greater"),
    "sums of some": (lambda x: x + x.sum(where=x > 1), "Cannot cast array data"),
    "if": (lambda x: x if x[0, 0, 0] else -x, "A condition on x"),
    "float": (lambda x: x + float(x[0, 0, 0]), r"float\(x\)"),
    "int": (lambda x: x + int(x[0, 0, 0]), r"int\(x\)"),
    "complex": (lambda x: x + abs(complex(x[0, 0, 0])), r"complex\(x\)"),
    "math": (lambda x: x + math.sin(x[0, 0, 0]), r"float\(x\)"),
    "index": (lambda x: x[:, range(x[0, 0, 0])], "entry of x as an index"),
    "asarray": (lambda x: np.asarray(x), "np.asarray.* use np.stack for lists"),
    "array of a list": (lambda x: np.array([x, x])[0], "np.asarray"),
    "numbers in place": (lambda x: np.add(x, 1, out=np.ones(x.shape)), "np.zeros_like"),
    "floor": (lambda x: np.floor(x), "operation floor"),
    "floor division": (lambda x: x // 1, "operation floor_divide"),
    "remainder": (lambda x: x % 1, "operation remainder"),
    "rint": (lambda x: np.rint(x), "operation rint cannot .* operations that are known"),
    "round": (np.round, r"function numpy\.round"),
    "norm": (lambda x: x / np.linalg.norm(x, "nuc", (1, 2)), r"ord='nuc' .*ord=2"),
    "medians of two axes": (lambda x: x - np.median(x, axis=(1, 2)), "Give one axis"),
    "weights": (lambda x: np.average(x, (1, 2), [1, 2]), "Weights have the shape of x"),
    "weights, too": (lambda x: np.average(x, 1, returned=True)[0], "returned=True"),
    "means beside x": (lambda x: np.pad(x, 1, mode="mean"), r"mode='mean' .*Take one of"),
    "corners of x": (lambda x: x + np.interp(1, x[0, 0], [1, 2, 3]), "corners must be"),
    "jumps at the ends": (lambda x: x + np.interp(x, [0, 2], [0, 1], left=3), "be jumps"),  # pyright: ignore[reportUnknownLambdaType]
    "corners that fall": (lambda x: x + np.interp(x, [1, 0], [0, 1]), "xp must increase"),  # pyright: ignore[reportUnknownLambdaType]
    "corners of two lengths": (lambda x: x + np.interp(x, [0, 1], [0]), "of one length"),  # pyright: ignore[reportUnknownLambdaType]
    "-infinity": (lambda x: np.tanh(x + -np.inf), "constant -inf .* In a mask of scores"),
    "-infinity as a result": (lambda x: x + -np.inf, "constant -inf"),
    "-infinity minus itself": (lambda x: np.exp((x + -np.inf) - (x + -np.inf)), "-inf"),
    "-infinity in a choice": (lambda x: np.exp(np.where(x > 1, x, -np.inf)), "-inf"),
    "-infinity, turned": (lambda x: np.exp(-(x + -np.inf)), "constant -inf"),
    "-infinity times x": (lambda x: np.exp(x * -np.inf), "constant -inf"),
    "1 / -infinity": (lambda x: x + 1 / (x + -np.inf), "constant -inf"),
    "argmax": (lambda x: x + x.argmax(-1)[..., None], r"x\.argmax cannot be traced"),
    "at": (lambda x: np.add.at(x, 0, 1), r"method add\.at"),
    "scipy": (lambda x: scipy.special.expit(x), "operation expit"),
    "scipy, other": (lambda x: scipy.special.softmax(x, -1), "np.asarray"),
    "torch": (lambda x: torch.sin(torch.from_numpy(x)), "TypeError: expected np.ndarray"),
    "float32": (lambda x: x.astype(np.float32), "conversion to float32"),
    "integers": (lambda x: np.zeros_like(x, dtype=int), "conversion to int64"),
    "small integers": (lambda x: x + ((x > 1) * np.uint8(200) + np.uint8(100)), "in uint8"),
    "small integers in a list": (lambda x: x + (x > 1) * [np.int8(100)] * D, "in int8"),
    "small numbers": (lambda x: x + (x > 1) * np.float16(1e4) * np.float16(10), "float16"),
    "small integers, chosen": (lambda x: x + np.where(x > 1, SMALL[0], 1), "in uint8"),
    "small integers, chosen first": (lambda x: x + np.where(SMALL, x > 1, SMALL), "in uin"),
    "small integers beside": (lambda x: x + np.hstack([x > 1, SMALL[None]]), "in uint8"),
    "small integers, multiplied": (lambda x: x + np.dot(x > 1, SMALL), "in uint8"),
    "small integers, added up": (lambda x: x + (x > 1) @ SMALL, "in uint8"),
    "small integers of a mask": (lambda x: x + (x > 1).astype("u1") * 256, "in uint8"),
    "integers without a sign": (lambda x: x + ((x > 1) * np.uint64(1) - 1), "in uint64"),
    "large integers": (lambda x: x + (x > 1) * 2**62 * 4, "Large integers made of truth"),
    "large counts": (lambda x: x + (x > 1).sum(-1, keepdims=True) * 2**62, "Large int"),
    "large powers of integers": (lambda x: x + ((x > 1) * 3) ** 50, "Large integers"),
    "large squares": (lambda x: x + np.square((x > 1) * 2**40), "Large integers"),
    "large matrices": (lambda x: x + ((x > 1) * 2**40) @ LARGE, "Large integers"),
    "large products": (lambda x: x + np.prod((x > 1) * 2**30, (1, 2)), "Large integers"),
    "large inner products": (lambda x: x + np.dot((x > 1) * 2**40, LARGE), "Large"),
    "large integers in place": (lambda x: doubled((x > 1) * 2**62) + x, "Large integers"),
    "reciprocals": (lambda x: x + np.reciprocal(1 + (x > 1)), "reciprocal on integers"),
    "halves beside integers": (lambda x: x + halves((x > 1) * 1), "numbers to integers"),
    "halves in integers": (lambda x: x + np.full_like((x > 1) * 1, 0.5), "like one of"),
    "halves around integers": (
        lambda x: x + np.pad((x > 1) * 1, 1, constant_values=0.5)[1:-1, 1:-1, 1:-1],
        r"numpy\.pad of integers and other numbers",
    ),
    "halves among integers": (
        lambda x: x + np.insert((x > 1) * 1, 0, 0.5, axis=2)[..., 1:],
        r"numpy\.insert of integers and other numbers",
    ),
    "x among integers": (
        lambda x: x + np.insert((x > 1) * 1, 0, x[..., 0], axis=2)[..., 1:],
        r"numpy\.insert of integers and other numbers",
    ),
    "sums in integers": (
        lambda x: np.add((x > 1) * 1, x, out=(x > 1) * 1, casting="unsafe"),
        "add in an array of integers",
    ),
    "sums from a half": (lambda x: x + ((x > 1) * 1).sum(initial=0.5), "sum of integers"),
    "reductions from a half": (
        lambda x: x + np.add.reduce((x > 1) * 1, initial=0.5),
        "add on integers",
    ),
    "a mask of its neighbours": (lambda x: x + beside_itself(x > 1), "lies beside what it"),
    "nan": (lambda x: x * np.nan, "constant nan .* finite real"),
    "infinity": (lambda x: np.minimum(x, np.inf), "constant inf"),
    "complex numbers": (lambda x: x + 1j, "constant 1j"),
    "text": (lambda x: x + "a", "constant a "),
    "nothing": (lambda x: None, "constant None"),
    "large numbers": (lambda x: x * 10**400 / 10**400, "constant beyond float64"),
    "roots": (lambda x: x**0.3, r"power x \*\* 0\.3 .*np.exp\(y \* np.log\(x\)\)"),
    "powers of x": (lambda x: x**x, r"power x \*\* y"),
    "large powers": (lambda x: x**65, r"power x \*\* 65 .*up to 64"),
    "shape": (lambda x: x.sum(-2), r"returned shape \(1, 3\) for input of .*\(1, 2, 3\)"),
    "constant shape": (lambda x: np.zeros(3), r"returned shape \(3,\)"),
    "its own error": (lambda x: x / len(x[0, 7]), "IndexError: index 7 is out of bounds"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(ExpressionError, match=message) as caught:
        traced(function)
    if "shape" not in name:
        assert "declare lipschitz= or modulus=" in str(caught.value)


def test_state_is_found() -> None:
    calls: list[Any] = []

    def counts(x: Any) -> Any:
        calls.append(x)
        return x * len(calls)

    def remembers(x: Any) -> Any:
        return calls[0] + x

    with pytest.raises(ExpressionError, match=r"At x = \[\[.*must depend on x alone"):
        traced(counts)
    with pytest.raises(ExpressionError, match="an earlier call left behind"):
        traced(remembers)


DIFFERENT: dict[str, Function] = {
    "random numbers": lambda x: x + np.random.default_rng().random(),
    "another sequence of the batch": lambda x: x + x[:1],
    "the size of the batch": lambda x: x if len(x) == 1 else -x,
    "not defined": lambda x: np.log(x - 1),
    "not finite": lambda x: 1 / (x - x),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_functions_that_differ_from_their_trace(name: str) -> None:
    with pytest.raises(ExpressionError, match=r"At x = .* returns .* and its trace"):
        traced(DIFFERENT[name])


def test_failures_of_the_comparison() -> None:
    def only_one(x: Any) -> Any:
        return x.reshape(1, N, D)

    with pytest.raises(ExpressionError, match=r"failed while it was compared .*reshape"):
        traced(only_one)
    with pytest.raises(ExpressionError, match=r"shape \(1, 2, 3\) for .*\(\d{3,}, 2, 3\)"):
        traced(lambda x: x[:1])


def test_length_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_NODES", 50)
    assert len(traced(lambda x: np.sort(x, axis=1), 6, 1).nodes) <= 50
    with pytest.raises(ExpressionError, match="more than 50 operations"):
        traced(lambda x: np.sort(x, axis=1), 9, 1)


def test_the_box_is_used() -> None:
    assert trace(np.log, 1, 2, [1, 3], [2, 4]).d_model == 2
    with pytest.raises(ExpressionError, match="must depend on x alone"):
        trace(np.log, 1, 2, [1, -4], [2, -3])


def test_targets_trace_when_asked() -> None:
    calls: list[int] = []

    def function(x: Any) -> Any:
        calls.append(1)
        return 2 * x

    target, twin = Target(function, 2, 1), Target(function, 2, 1)
    assert not calls
    first = target.expression
    assert first is not None
    assert first is target.expression
    asked = len(calls)
    assert target.untraceable is None
    assert len(calls) == asked  # traced and compared once
    assert target == twin
    assert hash(target) == hash(twin)


@pytest.mark.parametrize("name", ["floor", "its own error", "shape", "torch"])
def test_targets_that_cannot_be_traced(name: str) -> None:
    function, message = REFUSED[name]
    target = Target(function, N, D, lipschitz=1)
    assert target.expression is None
    assert target.untraceable is not None
    assert re.search(message, target.untraceable)
    assert target == Target(function, N, D, lipschitz=1)


def test_what_minus_infinity_swallows_must_be_defined() -> None:
    scores: list[Function] = [lambda x: 1 / x, np.log, np.sqrt, lambda x: x**-2]
    mask = np.array([[0, -np.inf], [-np.inf, -np.inf]])

    def masked(score: Function, x: Any) -> Any:
        return np.exp(score(x) + mask)

    for score in scores:
        with pytest.raises(ExpressionError, match=r"undefined unseen\. Use -1e9 in place"):
            trace(partial(masked, score), 2, 2, [1, 1], [2, 2])
    trace(lambda x: np.exp(x / 2 + mask), 2, 2, [1, 1], [2, 2])
    known = trace(lambda x: x + np.exp(np.log(x) + mask) + np.log(x), 2, 2, [1, 1], [2, 2])
    assert sum(node.op == "exp" for node in known.nodes) == 1


def test_products_of_choices_stay_short() -> None:
    def signs(x: Any) -> Any:
        return np.stack([np.prod(np.sign(x - k), -1) for k in range(3)], -1)

    assert len(traced(signs, 1, 3).nodes) < 200
    many = trace(
        lambda x: np.prod(np.sign(x), -1)[..., None] * x, 1, 40, [-1] * 40, [1] * 40
    )
    assert len(many.nodes) < 2000
    hidden = trace(lambda x: np.log(x) * (x > 1), 1, 1, [0.5], [2])
    assert [n.op for n in hidden.nodes].count("log") == 1
    assert [n.op for n in hidden.nodes].count("mul") == 1  # 0 log(x): it says where
