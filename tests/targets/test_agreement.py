"""Functions are held against their traces at many points, with room for rounding alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everyformer.errors import ExpressionError
from everyformer.targets import agreement
from everyformer.targets.points import inside, special
from everyformer.targets.trace import trace

Function = Callable[[Any], Any]
N, D = 2, 2
ROUNDED: dict[str, tuple[Function, float, float]] = {
    "expm1 at 0": (lambda x: np.expm1(x) / x, 0, 1),
    "log1p at 0": (lambda x: np.log1p(x) / x, 0, 1),
    "x log x": (lambda x: x * np.log(x), 0, 1),
    "a root at its end": (lambda x: np.sqrt(1 - x * x), 0, 1),
    "a pole at a corner": (lambda x: 1 / x, 0, 1),
    "means of large numbers": (lambda x: x - x.mean((-1, -2), keepdims=True), 0, 1e12),
    "equal large numbers": (lambda x: 1e9 * x.var(-2, keepdims=True) + x, 1e6, 1e6 + 1),
    "a steep function": (lambda x: 1 / (x**2 + 1e-8), -1, 1),
    "large powers": (lambda x: (x * x * x - 1) ** 9 * x**40, 0.5, 2),
    "a small box": (lambda x: np.sin(x) - np.cos(x), 0, 1e-300),
    "a box of one float": (lambda x: x + 1, 1, np.nextafter(1, 2)),
    "negative numbers": (lambda x: np.sort(x, axis=-2) * abs(x), -7, -3),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_is_allowed(name: str) -> None:
    function, low, high = ROUNDED[name]
    assert trace(function, N, D, [low] * D, [high] * D).seq_len == N


@pytest.mark.parametrize("error", [1e-8, 1e-4, np.nan, np.inf])
@pytest.mark.parametrize("low", [0, 1e6])
def test_more_is_not(error: float, low: float) -> None:
    def function(x: Any) -> Any:
        return x if type(x) is not np.ndarray else x + error * (1 + abs(x))

    with pytest.raises(ExpressionError, match=r"in a batch of \d+, the function returns"):
        trace(function, N, D, [low] * D, [low + 1] * D)


@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 2), (16, 4)])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 1e12), (0.0, 5e-324)])
def test_points_are_in_the_box(n: int, d: int, low: float, high: float) -> None:
    rng = np.random.default_rng(0)
    ends = np.full((n, d), low), np.full((n, d), high)
    found = np.concatenate([inside(rng, 50, *ends), special(rng, 50, *ends)])
    assert found.shape[1:] == (n, d)
    assert ((found >= low) & (found <= high)).all()
    flat = found.reshape(len(found), -1)
    assert (flat == low).all(-1).any()
    assert (flat == high).all(-1).any()
    assert ((flat == low).any(-1) & (flat != low).any(-1)).any() or n * d == 1


def test_long_programs_are_compared_at_fewer_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []

    def function(x: Any) -> Any:
        sizes.append(len(x))
        return x + 1

    trace(function, N, D, [0] * D, [1] * D)
    usual = max(sizes)
    monkeypatch.setattr(agreement, "WORK", 100)
    trace(function, N, D, [0] * D, [1] * D)
    fewer = max(sizes[len(sizes) // 2 :])
    assert 100 <= fewer < usual / 10
    assert {1, 2, 3, 64} <= set(sizes)
