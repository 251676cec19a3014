"""A target refuses what it cannot be, and what a function must not return."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from everyformer.errors import TargetError
from everyformer.targets.target import Target


def identity(x: np.ndarray) -> np.ndarray:
    return x


def lose_tokens(x: np.ndarray) -> np.ndarray:
    return x.mean(-2)


def not_a_number(x: np.ndarray) -> np.ndarray:
    return x * np.nan


def imaginary(x: np.ndarray) -> np.ndarray:
    return x + 1j


def broken(x: np.ndarray) -> np.ndarray:
    raise AttributeError(x.shape)


def test_any_number_of_batch_dimensions() -> None:
    target = Target(lambda x: 2 * x, 2, 1)
    x = np.random.default_rng(0).random((3, 4, 5, 2, 1))
    assert np.array_equal(target(x), 2 * x)
    assert target(np.zeros((2, 1))).shape == (2, 1)


def test_the_function_cannot_change_its_input() -> None:
    def spoil(x: np.ndarray) -> np.ndarray:
        x *= 0
        return x

    x = np.ones((2, 1))
    Target(spoil, 2, 1)(x)
    assert (x == 1).all()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lose_tokens, r"returned shape \(1, 1\) for input of shape \(1, 2, 1\)"),
        (not_a_number, r"returned .*nan.* at x = \[\[0.5\], \[0.5\]\]"),
        (imaginary, "dtype complex128"),
        (broken, "failed on an array of shape .*AttributeError"),
    ],
)
def test_bad_functions(function: Callable[..., Any], message: str) -> None:
    target = Target(function, 2, 1, name="bad")
    with pytest.raises(TargetError, match=message):
        target(np.full((2, 1), 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_len": 0}, "seq_len=0 is not an integer >= 1"),
        ({"d_model": 1.5}, "d_model=1.5"),
        ({"seq_len": True}, "seq_len=True"),
        ({"function": 3}, "function=3 cannot be called"),
        ({"lipschitz": -1}, "lipschitz=-1"),
        ({"lipschitz": float("nan")}, "lipschitz=nan"),
        ({"lipschitz": 1, "modulus": abs}, "both given"),
        ({"domain": [(1, 0)]}, r"\(1, 0\), which is empty"),
        ({"domain": [(0, 1), (0, 1)]}, "2 intervals for d_model=1"),
        ({"domain": 5}, "not a list of"),
        ({"domain": [(0, float("inf"))]}, "not finite"),
    ],
)
@pytest.mark.unhooked
def test_bad_declarations(arguments: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"function": identity, "seq_len": 2, "d_model": 1}
    with pytest.raises(TargetError, match=message):
        Target(**{**given, **arguments})


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(TargetError, match=r"seq_len=0 .*; d_model=-1 .*; lipschitz=-2"):
        Target(identity, 0, -1, lipschitz=-2)


def test_modulus() -> None:
    assert Target(identity, 2, 1).modulus_of_continuity(0.5) is None
    assert Target(identity, 2, 1, lipschitz=2).modulus_of_continuity(0.5) == 1
    root = Target(identity, 2, 1, modulus=lambda r: r**0.5)
    assert root.modulus_of_continuity(Fraction(1, 4)) == Fraction(1, 2)
    broken_modulus = Target(identity, 2, 1, modulus=lambda r: r / 0)
    with pytest.raises(TargetError, match=r"failed at radius 0\.25: ZeroDivisionError"):
        broken_modulus.modulus_of_continuity(0.25)
    wrong = Target(identity, 2, 1, modulus=lambda r: -r)
    with pytest.raises(TargetError, match=r"returned -0\.25 at radius 0\.25"):
        wrong.modulus_of_continuity(0.25)


HUGE = {"digits": 10**400, "too many": 10**5000, "a share": Fraction(10**5000, 3)}


@pytest.mark.parametrize("name", HUGE)
def test_constants_beyond_float64_are_refused(name: str) -> None:
    huge: Any = HUGE[name]
    with pytest.raises(TargetError, match=r"lipschitz=<a number of [\d,]+ bits> is not"):
        Target(lambda x: x, 2, 1, lipschitz=huge)
    target = Target(lambda x: x, 2, 1, modulus=lambda r: huge)
    with pytest.raises(TargetError, match=r"returned <a number of [\d,]+ bits> at radius"):
        target.modulus_of_continuity(0.5)
