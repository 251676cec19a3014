"""Maxima that cancel are removed, others stay, and the function is the same."""

from collections.abc import Callable

import numpy as np
import pytest

from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.expression import Expression
from everyformer.targets.gallery import GALLERY, soft_attention
from everyformer.targets.trace import trace


def traced(function: Callable[[np.ndarray], np.ndarray], n: int = 2) -> Expression:
    return trace(function, n, 1, [0.0], [1.0])


def kinks(expression: Expression) -> int:
    return sum(node.op in {"min", "max"} for node in expression.nodes)


def shifted(x: np.ndarray) -> np.ndarray:
    return x - x.max(-2, keepdims=True)


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    top = x.max(-2, keepdims=True)
    return x * 0 + (top + np.log(np.exp(x - top).sum(-2, keepdims=True)))


SMOOTH: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "softmax": lambda x: np.exp(shifted(x)) / np.exp(shifted(x)).sum(-2, keepdims=True),
    "log-sum-exp": log_sum_exp,
    "halved": lambda x: np.exp(shifted(x) / 2) / np.sqrt(np.exp(shifted(x))),
    "scaled": lambda x: np.exp(3 * shifted(x)) / np.exp(-shifted(x)) ** -3,
    "signs": lambda x: -np.exp(-shifted(x)) / np.abs(-np.exp(-shifted(x[..., ::-1, :]))),
    "minimum": lambda x: (
        np.exp(x - x.min(-2, keepdims=True))
        / np.exp(x[..., :1, :] - x.min(-2, keepdims=True))
    ),
}

KINKED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "distance": lambda x: x.max(-2, keepdims=True) - x,
    "one exp": lambda x: np.exp(shifted(x)),
    "plus one": lambda x: np.exp(shifted(x)) / (1 + np.exp(shifted(x))),
    "other power": lambda x: np.exp(2 * shifted(x)) / np.exp(shifted(x)),
    "sine": lambda x: np.sin(shifted(x)) / np.exp(shifted(x)),
    "product of shifts": lambda x: shifted(x) * shifted(x),
    "root first": lambda x: (
        np.exp(x - np.maximum(np.sqrt(x), x[..., ::-1, :]))
        / np.exp(-np.maximum(np.sqrt(x), x[..., ::-1, :]))
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_what_cancels_is_removed(name: str) -> None:
    before = traced(SMOOTH[name])
    after = without_cancelling_maxima(before)
    assert kinks(before) > 0
    assert kinks(after) == 0
    x = np.random.default_rng(0).uniform(-2, 3, (200, 2, 1))
    assert np.allclose(after(x), before(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KINKED)
def test_what_does_not_cancel_stays(name: str) -> None:
    before = traced(KINKED[name])
    after = without_cancelling_maxima(before)
    assert kinks(after) == kinks(before) > 0


@pytest.mark.parametrize("name", GALLERY)
def test_gallery_targets_stay_what_they_are(name: str) -> None:
    target = GALLERY[name](3, 2)
    assert target.expression is not None
    after = without_cancelling_maxima(target.expression)
    x = np.random.default_rng(1).uniform(0, 1, (100, 3, 2))
    assert np.allclose(after(x), target(x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 1), (2, 2), (4, 3)])
def test_attention_becomes_smooth(n: int, d: int) -> None:
    expression = soft_attention(n, d).expression
    assert expression is not None
    assert kinks(expression) > 0
    assert kinks(without_cancelling_maxima(expression)) == 0
