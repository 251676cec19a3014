"""Declarations that are true at every centre of a grid, and false between them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.errors import TargetError
from everyformer.targets import GALLERY
from everyformer.targets.declarations import check_declarations
from everyformer.targets.target import Target

K = 8
Function = Callable[[np.ndarray], np.ndarray]


def opaque(function: Function) -> Function:
    """The function on numbers; nothing can be traced."""
    return lambda x: function(np.array(x, dtype=np.float64))


def ripples(x: np.ndarray) -> np.ndarray:
    """0 at the centres of 8 cells, with slopes of 0.3 pi 8 between them."""
    return 0.3 * np.cos(np.pi * K * x)


def on_second_token(x: np.ndarray) -> np.ndarray:
    return ripples(x) * np.arange(x.shape[-2])[:, None]


def step(x: np.ndarray) -> np.ndarray:
    """A jump of 0.02 inside a cell, far less than the constant allows between centres."""
    return x / 2 + 0.02 * (x > 0.3)


def jump_at_the_edge(x: np.ndarray) -> np.ndarray:
    return x / 2 + (x == 1.0)


def jump_at_a_corner(x: np.ndarray) -> np.ndarray:
    return x / 2 + (x == 1.0).all(axis=(-2, -1), keepdims=True)


def jump_at_a_border(x: np.ndarray) -> np.ndarray:
    """Off by 0.01 on the borders of cells and nowhere else."""
    return x / 2 + 0.01 * (x * K == np.rint(x * K))


def cliff(x: np.ndarray) -> np.ndarray:
    """A slope of 1e4 on a thousandth of an axis."""
    return x / 2 + np.clip((x - 0.7001) * 1e4, 0.0, 0.01)


def steep_on_the_diagonal(x: np.ndarray) -> np.ndarray:
    """Slope 1/2 along every axis, and 3/2 if three tokens move together."""
    return np.ones_like(x) * x.sum(axis=-2, keepdims=True) / 2


FALSE_CONSTANTS: list[tuple[Function, float]] = [
    (lambda x: x + ripples(x), 1.0),
    (step, 1.0),
    (jump_at_the_edge, 1.0),
    (jump_at_a_corner, 1.0),
    (jump_at_a_border, 1.0),
    (cliff, 1.0),
    (steep_on_the_diagonal, 1.49),
    (lambda x: 1.001 * x, 1.0),
    (lambda x: x * 1e-200, 0.9e-200),
    (lambda x: x + 1e3 * (x == 0.0), 100.0),
]


@pytest.mark.parametrize(("function", "L"), FALSE_CONSTANTS, ids=range(10))
def test_a_false_constant_is_seen_between_centres(function: Function, L: float) -> None:
    target = Target(opaque(function), 3, 1, lipschitz=L, name="liar")
    message = (
        r"liar declares max.f\(X\) - f\(Y\). <= \S+ max.X - Y., which is false: entry "
        r"\[\d, 0\] of f is .* at X = \[\[.* and .* at Y = \[\[.* differs by .* allows"
    )
    with pytest.raises(TargetError, match=message):
        check_declarations(target, K)


def test_the_pair_that_is_shown_is_a_counterexample() -> None:
    function = opaque(cliff)
    with pytest.raises(TargetError) as told:
        check_declarations(Target(function, 2, 1, lipschitz=1), K)
    parts = str(told.value).replace("Y = ", "X = ").split("X = [[")[1:]
    x, y = (
        np.array([[float(v)] for v in part[: part.index("]]")].split("], [")])
        for part in parts
    )
    gap = np.abs(function(x) - function(y)).max()
    assert gap > 1.001 * np.abs(x - y).max() > 0


def flat_then_steep(r: float) -> float:
    """Too small for distances from 0.01 to 0.02, and right for all others."""
    return 0.005 if 0.01 < r < 0.02 else r


FALSE_MODULI: list[tuple[Function, Callable[[float], float]]] = [
    (lambda x: x, flat_then_steep),
    (np.cbrt, lambda r: np.cbrt(r) * 0.99),
    (np.sqrt, lambda r: r),
    (lambda x: x, lambda r: 0.0),
    (lambda x: x, lambda r: r**1.01),
]


@pytest.mark.parametrize(("function", "modulus"), FALSE_MODULI, ids=range(5))
def test_a_false_modulus_is_seen(
    function: Function, modulus: Callable[[float], float]
) -> None:
    target = Target(opaque(function), 2, 1, modulus=modulus, name="liar")
    with pytest.raises(TargetError, match="liar declares a modulus of continuity, which"):
        check_declarations(target, K)


UNFAIR: list[Function] = [
    lambda x: x + on_second_token(x),
    lambda x: x * np.array([[1.0], [1.0], [1.0 + 1e-6]]),
    lambda x: x + (x == 1.0) * np.array([[0.0], [0.0], [1.0]]),
    lambda x: x + 1e-3 * np.maximum(x[..., :1, :] - 0.95, 0.0) * x,
    lambda x: np.roll(x, 1, axis=-2),
    lambda x: 1e-12 * np.cumsum(x, axis=-2),
]


@pytest.mark.parametrize("function", UNFAIR, ids=range(6))
def test_a_false_symmetry_is_seen_between_centres(function: Function) -> None:
    target = Target(opaque(function), 3, 1, lipschitz=1e12, equivariant=True, name="liar")
    message = r"liar is declared equivariant but is not: at X = \[\[.* order \[.* differ by"
    with pytest.raises(TargetError, match=message):
        check_declarations(target, K)


def test_nothing_is_proved_from_a_false_declaration(tmp_path: Path) -> None:
    """Neither when a network is certified, nor when a target is given to `verify`."""
    honest = Target(opaque(lambda x: x), 2, 1, lipschitz=1, equivariant=True)
    rippled = opaque(lambda x: x + ripples(x))
    steep = Target(rippled, 2, 1, lipschitz=1, name="steep")
    with pytest.raises(TargetError, match="steep declares"):
        ef.construct(steep, grid=K).certify()
    lopsided = opaque(lambda x: x + on_second_token(x))
    liar = Target(lopsided, 2, 1, lipschitz=9, equivariant=True, name="lopsided")
    with pytest.raises(TargetError, match="lopsided is declared equivariant but is not"):
        ef.construct(liar, grid=K).certify()
    ef.construct(honest, grid=K).save(tmp_path)
    assert ef.verify(tmp_path, target=honest).verdict is ef.Verdict.PROVED
    for lying, why in ((steep, "steep declares"), (liar, "is declared equivariant")):
        with pytest.raises(TargetError, match=why):
            ef.verify(tmp_path, target=lying)


def test_a_false_symmetry_of_a_traced_function_proves_nothing(tmp_path: Path) -> None:
    """Where f is an expression, `equivariant=` is not used: its program is looked at."""

    def lopsided(x: np.ndarray) -> np.ndarray:
        return x + 0.3 * np.cos(np.pi * K * x) * np.array([[0.0], [1.0]])

    target = Target(lopsided, 2, 1, equivariant=True)
    built = ef.construct(target, grid=K)
    certificate = built.certificate
    assert certificate.cells["representatives"] == K * K
    assert not certificate.is_conditional
    built.save(tmp_path)
    found = ef.verify(tmp_path, target=target)
    assert found.bound is not None
    x = np.random.default_rng(0).random((4096, 2, 1))
    sampled = np.sqrt(((lopsided(x) - built.network(x)) ** 2).sum(axis=(1, 2)).mean())
    assert 0.2 < sampled <= float(found.bound.value) * 1.01


@pytest.mark.parametrize("name", GALLERY)
def test_true_declarations_are_not_refused(name: str) -> None:
    """The constants of the gallery are the least ones, or nearly so."""
    for sizes in ((1, 1), (2, 1), (3, 2)):
        check_declarations(GALLERY[name](*sizes), K)


NUMB: list[tuple[Function, float, tuple[float, float]]] = [
    (lambda x: x, 1.0, (1e6, 1e6 + 1)),
    (lambda x: x, 1.0, (-1e12, 1e12)),
    (lambda x: x, 1.0, (0.0, 1e-300)),
    (lambda x: x, 1.0, (0.0, 5e-324)),
    (lambda x: x, 1.0, (1.0, 1.0 + 2.0**-52)),
    (lambda x: x, 1.0, (-1e308, 1e308)),
    (lambda x: 0 * x, 0.0, (0.0, 1.0)),
    (lambda x: 0 * x + 7e9, 0.0, (0.0, 1.0)),
    (lambda x: np.sin(1e5 * x), 1e5, (0.0, 1.0)),
    (lambda x: 1 / (x + 1e-3), 1e6, (0.0, 1.0)),
    (lambda x: x.mean(-2, keepdims=True) + 0 * x + 1e3, 1.0, (0.0, 1.0)),
    (lambda x: x, 1e308, (0.0, 1.0)),
]


@pytest.mark.parametrize(("function", "L", "domain"), NUMB, ids=range(12))
def test_rounding_is_not_a_contradiction(
    function: Function, L: float, domain: tuple[float, float]
) -> None:
    """Steepest where it is declared to be; boxes far away, huge or tiny."""
    target = Target(function, 3, 1, lipschitz=L, equivariant=True, domain=[domain])
    check_declarations(target, K)


def test_at_least_ten_thousand_points_off_the_centres() -> None:
    seen: list[np.ndarray] = []

    def function(x: np.ndarray) -> np.ndarray:
        seen.append(np.array(x).reshape(-1, 2))
        return np.array(x)

    check_declarations(Target(function, 2, 1, lipschitz=1, equivariant=True), K)
    points = np.unique(np.concatenate(seen), axis=0)
    centres = (points * K % 1 == 0.5).all(axis=1)
    assert (~centres).sum() > 20_000
