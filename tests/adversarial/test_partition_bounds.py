"""Partitions with bounds that are nearly attained: a little tampering is too much."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everyformer as ef
from everyformer.construct.certificates import certify

Function = Callable[[Any], Any]
FUNCTIONS: dict[str, Function] = {
    "a square": lambda x: x**2,
    "a root at the face": np.sqrt,
    "a root inside": lambda x: np.sqrt(np.abs(x - 0.4)),
    "a kink": lambda x: np.abs(x - 1 / 3),
    "a jump": lambda x: np.where(x > 0.3, x + 1, x),
    "a jump at an anchor": lambda x: np.where(x >= 0.5, 1.0, 0.0),
    "a thin band between anchors": lambda x: np.where((x > 0.41) & (x < 0.42), 50.0, x),
    "a narrow bump between anchors": lambda x: 1 / (1 + 1e4 * (x - 0.44) ** 2),
    "waves that anchors do not see": lambda x: np.sin(16 * np.pi * x),
}
K = 8
F = -1
"""The last register of n = d = 1 holds the value of a prefix token."""


def distances_sampled(network: Any, function: Function) -> list[float]:
    """d_2 and the supremum, at 20,001 points."""
    x = np.linspace(0, 1, 20_001).reshape(-1, 1, 1)
    gaps = np.abs(network(x) - function(x)).ravel()
    return [float(np.sqrt(np.square(gaps).mean())), float(gaps.max())]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("p", [2, np.inf])
def test_every_bound_is_above_the_error_and_near_it(name: str, p: float) -> None:
    function = FUNCTIONS[name]
    built = ef.construct(
        ef.Target(function, 1, 1), grid=K, method=ef.Partition(decay=2, margin=2), p=p
    )
    bound = built.certificate.bound
    assert bound is not None
    sampled = distances_sampled(built.network, function)[int(p != 2)]
    assert sampled * (1 - 1e-3) <= float(bound.value)
    if name != "waves that anchors do not see":
        assert float(bound.value) <= 1.6 * sampled


@pytest.mark.parametrize("name", ["a square", "a root at the face", "a kink"])
def test_a_value_that_makes_the_error_larger_is_not_proved(name: str) -> None:
    function = FUNCTIONS[name]
    target = ef.Target(function, 1, 1)
    built = ef.construct(target, grid=K, method=ef.Partition(decay=2, margin=2), p=np.inf)
    eps = built.certificate.eps
    assert eps is not None
    own = certify(built.network, target, grid=K, p=None, eps=eps)
    assert own.verdict is ef.Verdict.PROVED
    arrays = {name: array.copy() for name, array in built.network.arrays()}
    x = np.linspace(0, 1, 20_001).reshape(-1, 1, 1)
    gaps = (built.network(x) - function(x)).ravel()
    worst = int(np.argmax(np.abs(gaps)))
    keys = np.arange(-2, K + 3) / K
    nearest = int(np.argmin(np.abs(keys - x[worst, 0, 0])))
    arrays["registers.prefix"][nearest, F] += np.sign(gaps[worst]) * float(eps)
    other = built.network.with_arrays(arrays)
    assert distances_sampled(other, function)[1] > eps
    found = certify(other, target, grid=K, p=None, eps=eps)
    assert found.verdict is not ef.Verdict.PROVED
    assert found.bound is None or found.bound.value > eps
