"""Normal forms: what must be seen as equal, what must not, and that nothing false is."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.compile.algebra.normal_forms import Algebra
from everyformer.certify.compile.algebra.terms import Term
from everyformer.certify.undecided import Undecided
from everyformer.numerics.expression import Expression, Node

Function = Callable[[np.ndarray], np.ndarray]
ONE = Fraction(1)


def terms(algebra: Algebra, f: Function, n: int = 3, d: int = 2) -> list[Term]:
    """f's entries, from numpy through the recorder."""
    expression = ef.Target(f, n, d).expression
    assert expression is not None
    return [t for row in expression.run(algebra, algebra.entry) for t in row]


def agree(f: Function, g: Function, n: int = 3, d: int = 2) -> bool:
    """Whether all entries of both have the same term."""
    algebra = Algebra()
    pairs = zip(terms(algebra, f, n, d), terms(algebra, g, n, d), strict=True)
    return all(a is b for a, b in pairs)


def entries(algebra: Algebra, n: int, d: int) -> list[list[Term]]:
    """The input, as the network holds it."""
    return [[algebra.entry(j, i) for i in range(d)] for j in range(n)]


def total(algebra: Algebra, values: list[Term], factor: Fraction = ONE) -> Term:
    """An affine sum with equal coefficients."""
    return algebra.affine([(factor, value) for value in values], Fraction(0))


def logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def mean(x: np.ndarray, axis: int = -2) -> np.ndarray:
    return x.mean(axis, keepdims=True)


def highest(x: np.ndarray) -> np.ndarray:
    return x.max(-2, keepdims=True)


def where_above(x: np.ndarray, low: float) -> np.ndarray:
    return np.where(x > 0, x, low * x)


SAME: dict[str, tuple[Function, Function]] = {
    "centring": (
        lambda x: x - mean(x),
        lambda x: (2 * x - x.sum(-2, keepdims=True) + x) / 3,
    ),
    "shift": (lambda x: np.roll(x, 1, -2), lambda x: x[..., [2, 0, 1], :]),
    "reverse": (
        lambda x: x[..., ::-1, :],
        lambda x: np.flip(np.flip(x, -1), -2)[..., ::-1],
    ),
    "cumulative mean": (
        lambda x: np.cumsum(x, -2) / np.arange(1, 4)[:, None],
        lambda x: np.tril(np.ones((3, 3))) @ x / np.array([[1.0], [2], [3]]),
    ),
    "square of a sum": (
        lambda x: (x + mean(x)) ** 2,
        lambda x: x * x + 2 * x * mean(x) + mean(x) * mean(x),
    ),
    "cube": (lambda x: (x - 1) ** 3, lambda x: x**3 - 3 * x**2 + 3 * x - 1),
    "product by squares": (
        lambda x: ((x + mean(x)) ** 2 - (x - mean(x)) ** 2) / 4,
        lambda x: x * mean(x),
    ),
    "logistic, e^x": (logistic, lambda x: np.exp(x) / (1 + np.exp(x))),
    "logistic, complement": (logistic, lambda x: 1 - 1 / (1 + np.exp(x))),
    "logistic, tanh": (logistic, lambda x: (1 + np.tanh(x / 2)) / 2),
    "logistic, scaled": (
        logistic,
        lambda x: 2 * np.exp(x / 2) / (2 * np.exp(x / 2) + 2 * np.exp(-x / 2)),
    ),
    "logistic, odd": (logistic, lambda x: 1 - logistic(-x)),
    "logistic of a difference": (
        lambda x: logistic(x - mean(x)),
        lambda x: np.exp(x) / (np.exp(mean(x)) + np.exp(x)),
    ),
    "tanh": (np.tanh, lambda x: (np.exp(x) - np.exp(-x)) / (np.exp(x) + np.exp(-x))),
    "tanh, odd": (np.tanh, lambda x: -np.tanh(-x)),
    "swish": (lambda x: x * logistic(x), lambda x: x / (1 + np.exp(-x))),
    "normalise": (
        lambda x: (x - mean(x)) / np.sqrt(x.var(-2, keepdims=True) + 1 / 128),
        lambda x: (
            (x - mean(x))
            * (((x - mean(x)) ** 2).sum(-2, keepdims=True) / 3 + 1 / 128) ** -0.5
        ),
    ),
    "x / (1 + mean of squares)": (
        lambda x: x / (1 + mean(x**2)),
        lambda x: 3 * x * (1 / (3 + (x * x).sum(-2, keepdims=True))),
    ),
    "a quotient of one unknown": (lambda x: x / (1 + x), lambda x: 1 - 1 / (1 + x)),
    "a quotient by itself": (
        lambda x: (2 + 2 * np.exp(x)) * x / (1 + np.exp(x)),
        lambda x: 2 * x,
    ),
    "a double quotient": (lambda x: 1 / (1 + 1 / (2 + x)), lambda x: (2 + x) / (3 + x)),
    "e^-x log(1 + x)": (
        lambda x: np.exp(-x) * np.log(1 + x),
        lambda x: np.log1p(x) / np.exp(x),
    ),
    "log of a softmax": (
        lambda x: x - np.log(np.exp(x).sum(-2, keepdims=True)),
        lambda x: x - highest(x) - np.log(np.exp(x - highest(x)).sum(-2, keepdims=True)),
    ),
    "exp of a sum": (lambda x: np.exp(x) * np.exp(mean(x)), lambda x: np.exp(x + mean(x))),
    "sqrt squared": (lambda x: np.sqrt(1 + x**2) ** 2, lambda x: 1 + x * x),
    "powers of a root": (
        lambda x: x / np.sqrt(1 + x**2) ** 3,
        lambda x: x / (np.sqrt(1 + x**2) * (1 + x**2)),
    ),
    "a root of a number": (lambda x: x * np.sqrt(x * 0 + 4), lambda x: 2 * x),
    "sin and cos": (
        lambda x: np.sin(-3 * x) + np.cos(mean(x) - x),
        lambda x: np.cos(x - mean(x)) - np.sin(3 * x),
    ),
    "maximum, other order": (
        lambda x: highest(x) - x,
        lambda x: np.maximum(x[..., 1:2, :], np.maximum(x[..., 2:, :], x[..., :1, :])) - x,
    ),
    "maximum of centred tokens": (
        lambda x: highest(x - mean(x)) + x,
        lambda x: highest(x) - mean(x) + x,
    ),
    "maximum by relu": (
        lambda x: np.maximum(x, mean(x)),
        lambda x: x + np.maximum(mean(x) - x, 0),
    ),
    "minimum, other order": (
        lambda x: x.min(-2, keepdims=True) + x,
        lambda x: x + np.minimum(np.minimum(x[..., 1:2, :], x[..., 2:, :]), x[..., :1, :]),
    ),
    "abs, even": (lambda x: np.abs(x - mean(x)), lambda x: np.abs(mean(x) - x)),
    "0 between t and -t": (
        lambda x: np.maximum(np.maximum(np.abs(x), np.abs(mean(x))), 0),
        lambda x: np.maximum(np.abs(mean(x)), np.abs(x)),
    ),
    "a mean between two": (
        lambda x: np.minimum(np.minimum(x, mean(x)), (x + 2 * mean(x)) / 3),
        lambda x: np.minimum(mean(x), x),
    ),
    "abs by relu": (np.abs, lambda x: np.maximum(x, 0) + np.maximum(-x, 0)),
    "relu by where": (lambda x: np.maximum(3 * x, 0), lambda x: 3 * np.where(x > 0, x, 0)),
    "leaky relu": (
        lambda x: where_above(x, 0.25),
        lambda x: x / 4 + 0.75 * np.maximum(x, 0),
    ),
    "where, opposite": (
        lambda x: where_above(x, 0.25),
        lambda x: np.where(-x > 0, x / 4, x),
    ),
    "clip": (lambda x: np.clip(x, 0, 1), lambda x: np.maximum(x, 0) - np.maximum(x - 1, 0)),
}


@pytest.mark.parametrize("name", SAME)
def test_two_spellings_of_one_function_have_one_term(name: str) -> None:
    f, g = SAME[name]
    assert agree(f, g)


def scores(x: np.ndarray, kind: str) -> np.ndarray:
    turned = np.swapaxes(x, -1, -2)
    if kind == "distance":
        return -((x[..., :, None, :] - x[..., None, :, :]) ** 2).sum(-1)
    if kind == "without the query's square":
        return 2 * x @ turned - (x**2).sum(-1)[..., None, :]
    matrix = np.arange(x.shape[-1] ** 2).reshape(x.shape[-1], -1) / 7
    return x @ matrix @ turned


def attention(kind: str, *, first: bool, shifted: bool) -> Function:
    def attend(x: np.ndarray) -> np.ndarray:
        s = scores(x, kind)
        w = np.exp(s - s.max(-1, keepdims=True) if shifted else s)
        if first:
            return (w / w.sum(-1, keepdims=True)) @ x
        return (w @ x) / w.sum(-1, keepdims=True)

    return attend


@pytest.mark.unhooked
@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 2), (3, 2), (5, 3)])
@pytest.mark.parametrize("kind", ["distance", "without the query's square", "matrix"])
def test_all_spellings_of_attention_have_the_network_s_term(
    kind: str, n: int, d: int
) -> None:
    algebra = Algebra()
    x = entries(algebra, n, d)
    expected: list[Term] = []
    for i in range(n):
        row: list[Term] = []
        for k in range(n):
            if kind == "matrix":
                q = [
                    algebra.affine(
                        [(Fraction((c * d + e) / 7), x[i][c]) for c in range(d)],
                        Fraction(0),
                    )
                    for e in range(d)
                ]
                row.append(
                    total(algebra, [algebra.mul(*p) for p in zip(q, x[k], strict=True)])
                )
            else:
                products = [algebra.mul(*p) for p in zip(x[i], x[k], strict=True)]
                squares = [algebra.power(v, Fraction(2)) for v in x[k]]
                parts = [(Fraction(2), p) for p in products]
                parts += [(Fraction(-1), p) for p in squares]
                row.append(algebra.affine(parts, Fraction(5)))
        expected += [
            algebra.softmax_average(row, [x[k][c] for k in range(n)]) for c in range(d)
        ]
    for first in (True, False):
        for shifted in (True, False):
            found = terms(algebra, attention(kind, first=first, shifted=shifted), n, d)
            assert all(a is b for a, b in zip(found, expected, strict=True))


def test_attention_with_another_score_or_value_has_another_term() -> None:
    one = attention("distance", first=True, shifted=False)
    assert not agree(one, attention("matrix", first=True, shifted=False))
    assert not agree(one, lambda x: one(x) * 0.5 + 0.5 * x)
    assert not agree(one, lambda x: one(x[..., ::-1])[..., ::-1] + 0 * x[..., ::-1] - 1e-30)
    assert not agree(
        lambda x: np.exp(x) / np.exp(x).sum(-2, keepdims=True),
        lambda x: np.exp(2 * x) / np.exp(2 * x).sum(-2, keepdims=True),
    )


DIFFERENT: dict[str, tuple[Function, Function]] = {
    "a sign": (lambda x: x**2 - x + 1, lambda x: x**2 + x + 1),
    "1/3 and 0.333": (lambda x: x * Fraction(1, 3), lambda x: 0.333 * x),
    "1/3 and its float64": (
        lambda x: x.sum(-2, keepdims=True) / 3 + 0 * x,
        lambda x: x.sum(-2, keepdims=True) * (1 / 3) + 0 * x,
    ),
    "sqrt(x^2) and x": (lambda x: np.sqrt(x**2), lambda x: x),
    "sqrt(x^2) and |x|": (lambda x: np.sqrt(x**2), np.abs),
    "sqrt(x^4) and x^2": (lambda x: np.sqrt(x**4), lambda x: x**2),
    "e^x e^y and e^xy": (
        lambda x: np.exp(x) * np.exp(mean(x)),
        lambda x: np.exp(x * mean(x)),
    ),
    "max and min": (
        lambda x: highest(x) + 0 * x,
        lambda x: x.min(-2, keepdims=True) + 0 * x,
    ),
    "a number above the mean of two": (
        lambda x: np.maximum(np.maximum(x, 1 - x), np.maximum(0.75, mean(x))),
        lambda x: np.maximum(np.maximum(x, 1 - x), mean(x)),
    ),
    "max(-x) and -max(x)": (lambda x: highest(-x) + x, lambda x: x - highest(x)),
    "max(2x) and max(x)": (lambda x: highest(2 * x) - x, lambda x: highest(x) - x),
    "max of two and of three": (
        lambda x: highest(x) - x,
        lambda x: highest(x[..., :2, :]) - x,
    ),
    "abs and itself": (np.abs, lambda x: x),
    "leaky relu and its mirror": (
        lambda x: where_above(x, 0.25),
        lambda x: np.where(x > 0, 0.25 * x, x),
    ),
    "where at 0": (
        lambda x: np.where(x > 0, 1.0, 0.0),
        lambda x: np.where(x >= 0, 1.0, 0.0),
    ),
    "where of a square": (
        lambda x: np.where(x**2 > 0, x, 0.0),
        lambda x: np.where(x > 0, x, 0.0),
    ),
    "clip": (lambda x: np.clip(x, 0, 1), lambda x: np.clip(x, 0, 2)),
    "log(x^2) and 2 log(x)": (lambda x: np.log((x + 3) ** 2), lambda x: 2 * np.log(x + 3)),
    "sin and cos": (np.sin, np.cos),
    "tanh": (np.tanh, lambda x: np.tanh(x * 1.0000001)),
    "1 / (1 + x) and 1 - x": (lambda x: 1 / (1 + x), lambda x: 1 - x),
    "logistic": (logistic, lambda x: np.exp(x) / (2 + np.exp(x))),
    "x / x^2 and x": (lambda x: (1 + x) / (1 + x) ** 2, lambda x: 1 + x),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_two_functions_have_two_terms(name: str) -> None:
    f, g = DIFFERENT[name]
    assert agree(f, f)
    assert not agree(f, g)


def test_gadgets_have_the_terms_of_numpy() -> None:
    algebra = Algebra()
    ((a, b),) = entries(algebra, 1, 2)
    half = Fraction(1, 2)

    def numpy(f: Function) -> Term:
        return terms(algebra, lambda x: f(x) + 0 * x, 1, 2)[0]

    centred = algebra.affine([(half, a), (-half, b)], Fraction(0))
    squares = [algebra.power(v, Fraction(2)) for v in (centred, algebra.neg(centred))]
    variance = algebra.affine([(half, s) for s in squares], Fraction(1, 128))
    root = algebra.power(variance, -half)
    assert algebra.mul(centred, root) is numpy(
        lambda x: (x - mean(x, -1)) / np.sqrt(x.var(-1, keepdims=True) + 1 / 128)
    )
    assert algebra.power(variance, Fraction(3, 2)) is algebra.mul(
        variance, algebra.sqrt(variance)
    )
    assert algebra.logistic(a) is numpy(logistic)
    assert algebra.relu(algebra.neg(a)) is numpy(lambda x: np.maximum(-x, 0))
    assert algebra.maximum([b, a, b]) is numpy(lambda x: x.max(-1, keepdims=True))
    assert algebra.minimum([b, a]) is numpy(lambda x: x.min(-1, keepdims=True))
    assert algebra.mul(a, b) is numpy(lambda x: x[..., :1] * x[..., 1:])
    assert algebra.softmax_average([a, b], [a, a]) is a
    with pytest.raises(ValueError, match="multiple of 1/2"):
        algebra.power(a, Fraction(1, 3))


def transformer_block(d: int, *, plain: bool, grain: float | None) -> Function:
    """Layer norm, attention, layer norm, tanh MLP, skip connections, in two spellings."""
    rng = np.random.default_rng(5)

    def weights(rows: int, columns: int) -> np.ndarray:
        w = rng.normal(size=(rows, columns))
        return w if grain is None else np.round(w / grain) * grain

    W_Q, W_K, W_V = weights(d, 4), weights(d, 4), weights(d, d)
    W_O, W_1, W_2 = weights(d, d), weights(d, 2 * d), weights(2 * d, d)
    b_1 = weights(1, 2 * d)

    def norm(x: np.ndarray) -> np.ndarray:
        if plain:
            return (x - mean(x, -1)) / np.sqrt(x.var(-1, keepdims=True) + 1 / 128)
        c = x - x.sum(-1, keepdims=True) / d
        return c * (1 / np.sqrt((c * c).sum(-1, keepdims=True) / d + 1 / 128))

    def f(x: np.ndarray) -> np.ndarray:
        u = norm(x)
        s = (u @ W_Q) @ np.swapaxes(u @ W_K, -1, -2) / 2
        if plain:
            w = np.exp(s - s.max(-1, keepdims=True))
            y = x + (w / w.sum(-1, keepdims=True)) @ (u @ W_V) @ W_O
            return y + np.tanh(norm(y) @ W_1 + b_1) @ W_2
        w = np.exp(s)
        y = (w @ (u @ W_V)) / w.sum(-1, keepdims=True) @ W_O + x
        z = b_1 + norm(y) @ W_1
        return (1 - 2 / (1 + np.exp(2 * z))) @ W_2 + y

    return f


@pytest.mark.unhooked  # a check of types for each of 10^6 calls takes minutes
@pytest.mark.parametrize("grain", [1 / 16, None])
def test_a_transformer_block_has_one_term(grain: float | None) -> None:
    f, g = (transformer_block(8, plain=plain, grain=grain) for plain in (True, False))
    assert agree(f, g, 5, 8)
    assert not agree(f, lambda x: g(x) + 2.0**-60 * x, 5, 8)


@pytest.mark.unhooked
def test_soft_attention_over_24_tokens_has_one_term() -> None:
    algebra = Algebra()
    f = attention("distance", first=True, shifted=False)
    g = attention("without the query's square", first=False, shifted=True)
    assert terms(algebra, f, 24, 4) == terms(algebra, g, 24, 4)


def tower(*lines: Node) -> Expression:
    """A program of one entry."""
    nodes = (Node("x", (0, 0)), Node("const", value=Fraction(10**300, 3)), *lines)
    return Expression(1, 1, nodes, ((len(nodes) - 1,),))


@pytest.mark.parametrize("name", ["powers", "squares"])
def test_numbers_and_exponents_do_not_grow_without_end(name: str) -> None:
    first, power = (0, 64) if name == "powers" else (1, 2)
    lines = [Node("pow", (first, power)), *(Node("pow", (k + 2, power)) for k in range(60))]
    algebra = Algebra()
    with pytest.raises(Undecided, match="too long to compare"):
        tower(*lines).run(algebra, algebra.entry)


def test_work_is_limited() -> None:
    lines = [Node("add", (0, 1))]
    for k in range(2, 200, 3):
        lines += [Node("exp", (k,)), Node("add", (k, k + 1)), Node("mul", (k + 2, k + 2))]
    algebra = Algebra(10_000)
    with pytest.raises(Undecided, match="more than 10000 coefficients"):
        tower(*lines).run(algebra, algebra.entry)


@pytest.mark.unhooked
@pytest.mark.parametrize("op", ["sqrt", "exp", "tanh", "abs", "sin", "log", "div", "where"])
def test_deep_nests_end_without_recursion(op: str) -> None:
    lines: list[Node] = [Node("add", (0, 0))]
    depth = 50 if op == "div" else 1200
    for k in range(2, 2 * depth + 2, 2):
        args = {"div": (0, k), "where": (k, 0, k)}.get(op, (k,))
        lines += [Node(op, args), Node("add", (k + 1, 0))]
    algebra = Algebra()
    rows = tower(*lines).run(algebra, algebra.entry)
    assert algebra.pow(rows[0][0], 2) is algebra.mul(*rows[0], *rows[0])


def test_a_divisor_that_is_0_everywhere_does_not_crash() -> None:
    algebra = Algebra()
    ((x, y),) = entries(algebra, 1, 2)
    divisor = algebra.affine([(ONE, x), (ONE, y)], ONE)
    square = algebra.mul(divisor, divisor)
    nothing = algebra.sub(algebra.mul(square, algebra.inverse(divisor)), divisor)
    assert nothing is not algebra.zero
    assert algebra.div(x, nothing) is not algebra.div(y, nothing)
    assert algebra.log(nothing) is not algebra.log(algebra.zero)
    for zero in (algebra.zero, algebra.sub(x, x)):
        assert algebra.div(x, zero) is not algebra.div(y, zero)
        assert algebra.power(zero, Fraction(-1, 2)) is not zero


def softmax_weights(algebra: Algebra, scores: Sequence[Term]) -> list[Term]:
    powers = [algebra.exp(score) for score in scores]
    total = algebra.affine([(ONE, power) for power in powers], Fraction(0))
    return [algebra.div(power, total) for power in powers]


@pytest.mark.parametrize("n", [3, 5])
def test_softmax_weights_add_up_to_1(n: int) -> None:
    """Rule D inv(D) = 1, in any sum that holds all of it, and in no other."""
    algebra = Algebra()
    x = [row[0] for row in entries(algebra, n, 1)]
    weights = softmax_weights(algebra, [algebra.mul(x[0], t) for t in x])
    total = algebra.affine([(ONE, w) for w in weights], Fraction(0))
    assert total is algebra.one
    assert algebra.affine([(-ONE, w) for w in reversed(weights)], ONE) is algebra.zero
    pairs = list(zip(weights, x, strict=True))
    plain = algebra.affine([(ONE, algebra.mul(w, t)) for w, t in pairs], Fraction(0))
    for c in (algebra.constant(Fraction(1, 3)), x[0], algebra.mul(x[0], x[1])):
        moved = [(ONE, algebra.mul(w, algebra.add(t, c))) for w, t in pairs]
        assert algebra.affine(moved, Fraction(0)) is algebra.add(plain, c)
    assert algebra.affine([(ONE, w) for w in weights[1:]], Fraction(0)) is not algebra.one
    uneven = [(ONE * (1 + (k == 1)), w) for k, w in enumerate(weights)]
    assert algebra.affine(uneven, Fraction(0)) is algebra.add(algebra.one, weights[1])
    twice = algebra.affine([(ONE, algebra.mul(w, w)) for w in weights], Fraction(0))
    assert twice is not algebra.one


def test_a_divisor_times_its_inverse_is_1_where_it_is_defined() -> None:
    """With atoms that may be 0, too: x inv(D) is no reason to divide by x."""
    algebra = Algebra()
    ((x, y, z),) = entries(algebra, 1, 3)
    D = algebra.affine([(ONE, x), (2 * ONE, algebra.mul(y, z)), (3 * ONE, z)], ONE)
    inverse = algebra.inverse(D)
    assert algebra.mul(D, inverse) is algebra.one
    parts = [algebra.mul(t, inverse) for t in (x, algebra.mul(y, z), z, algebra.one)]
    factors = [Fraction(k) for k in (1, 2, 3, 1)]
    assert algebra.affine(zip(factors, parts, strict=True), Fraction(0)) is algebra.one
    wrong = [Fraction(k) for k in (1, 2, 3, 2)]
    found = algebra.affine(zip(wrong, parts, strict=True), Fraction(0))
    assert found is algebra.add(algebra.one, inverse)
