"""Traces that would be defined, or another number, where numpy's function is not.

The comparison at points does not see it: it happens in a gap of width 2e-9.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.errors import EveryformerError, ExpressionError
from everyformer.targets.trace import trace

GAP = 0.12345678912345


def _root(x: Any) -> Any:
    """Not defined in the gap."""
    return np.sqrt(np.abs(x - GAP) - 1e-9)


def _constant(p: Any, x: Any) -> Any:
    return x + np.polyval(p, _root(x))


def _in_gap(x: Any) -> Any:
    return np.abs(x - GAP) < 1e-9


def _doubled(mask: Any) -> Any:
    """For truth values in numpy: or."""
    return mask + mask


NOT_DEFINED: dict[str, Callable[[Any], Any]] = {
    "0 * sign": lambda x: x + np.sign(_root(x)) * 0,
    "0 * heaviside": lambda x: x + 0 * np.heaviside(_root(x), 1),
    "mask * sign": lambda x: x + (x > 5) * np.sign(_root(x)),
    "constant polynomial": lambda x: _constant([2.0], x),
    "constant poly1d": lambda x: _constant(np.poly1d([2.0]), x),
}

REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-inf, used in a branch": (
        lambda x: x + np.where(x > 5, _root(x), 0) + np.exp(_root(x) + -np.inf),
        "adds -inf",
    ),
    "average that raises": (
        lambda x: x + np.average(x, axis=1, weights=x - GAP, keepdims=True) ** 0,
        "may be undefined unseen",
    ),
    "pad": (
        lambda x: x + _doubled(np.pad(_in_gap(x), ((0, 0), (0, 1), (0, 0))))[:, 1:],
        "truth values",
    ),
    "insert": (
        lambda x: x + _doubled(np.insert(_in_gap(x), 0, True, axis=1))[:, 1:],
        "truth values",
    ),
    "insert a number": (
        lambda x: x + np.insert(_in_gap(x), 0, 0.5, axis=1)[:, 1:],
        "truth values",
    ),
    "tril": (
        lambda x: x + np.exp(np.tril(np.repeat(_in_gap(x), 2, -1)))[..., :1],
        "truth values",
    ),
}


@pytest.mark.parametrize("name", NOT_DEFINED)
def test_the_trace_is_not_defined_where_the_function_is_not(name: str) -> None:
    f = NOT_DEFINED[name]
    x = np.full((1, 2, 1), GAP)
    with np.errstate(all="ignore"):
        assert np.isnan(f(x)).all()
        assert np.isnan(trace(f, 2, 1, [0], [1])(x)).all()


@pytest.mark.parametrize("name", ["0 * sign", "constant polynomial"])
def test_nothing_is_proved_of_it(name: str) -> None:
    with pytest.raises(EveryformerError):
        ef.construct(
            ef.Target(NOT_DEFINED[name], seq_len=1, d_model=1), tol=0.1, method="compile"
        )


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    f, why = REFUSED[name]
    with pytest.raises(ExpressionError, match=why):
        trace(f, 2, 1, [0], [1])


def test_moved_truth_values_stay_truth_values() -> None:
    def f(x: Any) -> Any:
        lower = np.tril(np.repeat(x > 0.5, 2, -1))
        seen = np.concatenate([~lower, np.ones_like(x, float)[..., :1] > 2], axis=-1)
        seen.reshape(-1)[...] |= False
        return x + (seen & np.pad(x > 0.25, ((0, 0), (0, 0), (0, 2)))).sum(-1)[..., None]

    x = np.random.default_rng(0).random((9, 2, 1))
    assert np.allclose(trace(f, 2, 1, [0], [1])(x), f(x))


def test_minus_infinity_below_truth_values_makes_numbers_of_them() -> None:
    def f(x: Any) -> Any:
        return x + _doubled(np.maximum(x > 0.5, -np.inf))

    x = np.random.default_rng(0).random((9, 2, 1))
    assert np.allclose(trace(f, 2, 1, [0], [1])(x), f(x))
