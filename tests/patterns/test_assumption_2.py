"""Assumption 2: the scale t of each map, and scores for those that have none."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.errors import InputError
from everyformer.patterns.assumption_2 import DOUBLINGS, assumption_2
from everyformer.patterns.probability_maps import (
    ProbabilityMap,
    entmax,
    hardmax,
    is_own,
    rho_by_name,
    softmax,
    sparse_hourglass,
    sparsegen,
    sparsemax,
    spherical_softmax,
    sum_normalisation,
    top_k_softmax,
)
from everyformer.verdict import Verdict

GOOD = (
    softmax,
    sparsemax,
    hardmax,
    top_k_softmax(1),
    top_k_softmax(2),
    top_k_softmax(5),
    entmax(1.25),
    entmax(1.5),
    entmax(3.0),
    sparsegen(0.5),
    sparsegen(-2.0),
)
BAD = (sum_normalisation, spherical_softmax, sparse_hourglass(0.1), sparse_hourglass(4.0))
ROUNDING = 1e-9
Map = Callable[[np.ndarray], np.ndarray]


@pytest.mark.parametrize("rho", GOOD, ids=lambda rho: rho.name)
@given(
    st.floats(1e-3, 1e3),
    st.floats(1e-4, 1.0),
    st.integers(1, 40),
    st.floats(1, 50),
    st.integers(0, 10_000),
)
@settings(max_examples=20, deadline=None)
def test_every_scale_from_t_on_reaches_its_result(
    rho: ProbabilityMap, zeta: float, eta: float, m: int, larger: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    v = -zeta * rng.exponential(rng.choice([0.0, 0.1, 1.0]), size=m)
    star = int(rng.integers(m))
    others = np.delete(v, star)
    v[star] = zeta + (others.max() if m > 1 else 0.0)
    v += zeta * rng.normal()
    found = assumption_2(rho, zeta, eta, m)
    assert found.verdict is Verdict.PROVED
    assert found.scale is not None
    assert found.scale > 0
    for t in (found.scale * (1 + 1e-9), larger * found.scale * (1 + 1e-9)):
        weights = rho(t * v)
        assert weights.min() >= 0
        assert weights.sum() == pytest.approx(1, abs=1e-12)
        least = 1 - ROUNDING if rho.one_hot else 1 - eta - ROUNDING
        assert weights[star] >= least
        assert weights.sum() - weights[star] <= 1 - least + ROUNDING


@pytest.mark.parametrize(
    ("rho", "m"), [(softmax, 2), (softmax, 65), (top_k_softmax(3), 9), (sparsemax, 5)]
)
def test_t_is_the_least_on_its_worst_scores(rho: ProbabilityMap, m: int) -> None:
    """On (zeta, 0, .., 0) a t that is one percent smaller misses; so the formula bites."""
    zeta, eta = 0.5, 0.01
    v = np.zeros(m)
    v[0] = zeta
    t = assumption_2(rho, zeta, eta, m).scale
    assert t is not None
    reached = float(rho(0.99 * t * v)[0])
    gap = 1 / (1 + eta) if rho is not sparsemax else 1.0
    assert reached < gap - 1e-4


@pytest.mark.parametrize(("m", "reached"), [(2, 0.995), (5, 0.992), (64, 0.9902)])
def test_sparsemax_just_below_its_scale_is_not_one_hot(m: int, reached: float) -> None:
    v = np.zeros(m)
    v[0] = 0.25
    assert sparsemax(0.99 / 0.25 * v)[0] == pytest.approx(reached, abs=5e-5)
    assert sparsemax(v / 0.25)[0] == 1


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(1.05, 4))
@settings(max_examples=30, deadline=None)
def test_maps_are_what_they_are_called(scores: list[float], alpha: float) -> None:
    v = np.array(scores)
    simplex = np.random.default_rng(0).dirichlet(np.ones(len(v)), size=50)
    nearest = sparsemax(v)
    distance = ((nearest - v) ** 2).sum()
    assert (((simplex - v) ** 2).sum(axis=1) >= distance - 1e-9).all()
    np.testing.assert_allclose(entmax(2.0)(v), nearest, atol=1e-9)
    p = entmax(alpha)(v)
    kept = p > 1e-6
    tau = (alpha - 1) * v[kept] - p[kept] ** (alpha - 1)
    assert np.ptp(tau) < 1e-6  # p = [(alpha-1) v - tau]_+^(1/(alpha-1)) with one tau
    beyond = (1e-6) ** (alpha - 1)  # what p <= 1e-6 allows
    assert ((alpha - 1) * v[~kept] - tau.max() <= beyond + 1e-6).all()
    np.testing.assert_allclose(sparsegen(0.5)(v), sparsemax(2 * v), atol=1e-12)
    np.testing.assert_allclose(top_k_softmax(len(v))(v), softmax(v), atol=1e-12)
    assert (top_k_softmax(2)(v) > 0).sum() <= 2
    assert hardmax(v)[int(np.argmax(v))] == hardmax(v).sum() == 1


def test_maps_work_along_the_last_axis() -> None:
    v = np.random.default_rng(0).standard_normal((2, 3, 7))
    for rho in (*GOOD, sparse_hourglass(0.3)):
        each = np.array([[rho(row) for row in rows] for rows in v])
        np.testing.assert_allclose(rho(v), each, atol=1e-12)


@pytest.mark.parametrize("rho", BAD, ids=lambda rho: rho.name)
@pytest.mark.parametrize("m", [2, 3, 17])
def test_maps_that_fail_come_with_scores(rho: ProbabilityMap, m: int) -> None:
    found = assumption_2(rho, zeta=0.5, eta=1e-3, m=m)
    assert found.verdict is Verdict.REFUTED
    assert found.scale is None
    assert found.witness is not None
    assert found.reached is not None
    v = np.array(found.witness)
    assert v[0] - v[1:].max() >= 0.5
    assert found.reached < 1 - 1e-3
    for t in 2.0 ** np.arange(-20, 60):
        assert rho(t * v)[0] <= found.reached + 1e-12


def test_sparsehourglass_tends_to_the_printed_limit() -> None:
    weights = sparse_hourglass(0.1)(1e9 * np.array([2.0, 1.0]))
    np.testing.assert_allclose(weights, [0.7, 0.3], atol=1e-8)


def own_softmax(v: np.ndarray) -> np.ndarray:
    powers = np.exp(v - v.max())
    return powers / powers.sum()


def shares(v: np.ndarray) -> np.ndarray:
    return v / v.sum()


def bounded(v: np.ndarray) -> np.ndarray:
    return own_softmax(np.tanh(v))


def slow(v: np.ndarray) -> np.ndarray:
    return own_softmax(np.sign(v) * np.sqrt(np.abs(v)))


def first_alone(v: np.ndarray) -> np.ndarray:
    return v[:1]


def overflowing(v: np.ndarray) -> np.ndarray:
    return np.exp(v) / np.exp(v).sum()


def raising(v: np.ndarray) -> np.ndarray:
    raise RuntimeError("no luck.")


def never_finite(v: np.ndarray) -> np.ndarray:
    return v * np.nan


def complex_shares(v: np.ndarray) -> np.ndarray:
    return own_softmax(v) + 0j


def words(v: np.ndarray) -> np.ndarray:
    return np.array(["a"] * len(v))


def positive_alone(v: np.ndarray) -> np.ndarray:
    if (v < 0).any():
        raise ValueError("negative")
    return shares(v)


@pytest.mark.parametrize(
    ("rho", "fails"),
    [
        (own_softmax, False),
        (slow, False),
        (overflowing, False),
        (shares, True),
        (bounded, True),
        (positive_alone, True),
    ],
)
def test_a_function_of_the_users_is_never_decided(rho: Map, fails: bool) -> None:
    found = assumption_2(rho, zeta=0.5, eta=0.01, m=4)
    assert found.verdict is Verdict.UNKNOWN
    assert (found.witness is not None) == fails
    if fails:
        v = np.array(found.witness)
        assert v[0] - v[1:].max() >= 0.5 - 1e-12
        for doubling in range(DOUBLINGS + 1):
            assert rho(2.0**doubling / 0.5 * v)[0] <= (found.reached_sampled or 0)
        assert found.reached is None


@pytest.mark.parametrize(
    ("rho", "text"),
    [
        (np.tanh, "probabilities are needed"),
        (first_alone, r"shape \(1,\)"),
        (raising, r"raising fails on the scores \(1, 0, 0\): RuntimeError: no luck\. It"),
        (never_finite, r"to \(nan, nan, nan\).*probabilities are needed"),
        (complex_shares, "dtype complex128: .* real"),
        (words, "dtype <U1"),
    ],
)
def test_functions_that_give_no_probabilities_are_refused(rho: Map, text: str) -> None:
    with pytest.raises(InputError, match=text):
        assumption_2(rho, m=3)


def test_overflows_are_not_passed_over() -> None:
    """Beyond exp(709) nothing was seen, and the report says so."""
    found = assumption_2(overflowing, m=4)
    assert "in 0 draws" in found.reason
    assert "On 64 others it gave no finite numbers as t grew" in found.reason
    assert "others" not in assumption_2(own_softmax, m=4).reason


@pytest.mark.unhooked
def test_what_is_no_map_is_refused() -> None:
    with pytest.raises(InputError, match="rho='softmax' is not a map"):
        assumption_2("softmax")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"m=2\.5: .* a whole m"):
        assumption_2(softmax, m=2.5)  # pyright: ignore[reportArgumentType]


def test_wrong_numbers_are_refused() -> None:
    for zeta, eta, m in ((0.0, 0.1, 2), (1.0, 0.0, 2), (1.0, 1.5, 2), (1.0, 0.1, 0)):
        with pytest.raises(InputError, match="are needed"):
            assumption_2(softmax, zeta, eta, m)
    for make, value in ((entmax, 1.0), (sparsegen, 1.0), (sparse_hourglass, 0.0)):
        with pytest.raises(InputError, match="is needed"):
            make(value)
    with pytest.raises(InputError, match="k=0"):
        top_k_softmax(0)


def test_names() -> None:
    assert rho_by_name("softmax") is softmax
    assert rho_by_name("top-k:3").name == "top-3 softmax"
    assert rho_by_name("entmax:1.5").name == "1.5-entmax"
    for name, text in (
        ("softmin", "Choose one of softmax"),
        ("entmax:x", "not a number"),
        ("top-k:1.5", "not a number"),
        ("entmax", "Choose one of"),
        ("entmax:0.5", "alpha > 1"),
    ):
        with pytest.raises(InputError, match=text):
            rho_by_name(name)


@pytest.mark.parametrize("name", ["entmax:inf", "sparsegen:-inf", "sparsehourglass:inf"])
def test_parameters_that_are_not_finite_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="is needed"):
        rho_by_name(name)


BEYOND: tuple[tuple[ProbabilityMap, float, float, int], ...] = (
    (softmax, 5e-324, 0.01, 3),
    (sparsemax, 1e-320, 1.0, 2),
    (entmax(1.0000001), 5e-324, 0.01, 3),
    (sum_normalisation, 1e308, 0.01, 2),
    (sum_normalisation, 1.0, 0.01, 10**12),
    (sparse_hourglass(1e300), 1.0, 0.01, 2),
)


@pytest.mark.parametrize(("rho", "zeta", "eta", "m"), BEYOND)
def test_what_float64_does_not_have_is_refused(
    rho: ProbabilityMap, zeta: float, eta: float, m: int
) -> None:
    """Neither t = inf is PROVED, nor do scores refute that do not lead."""
    with pytest.raises(InputError, match=r"beyond float64\. Take|in float64\. Take"):
        assumption_2(rho, zeta, eta, m)


@pytest.mark.parametrize("zeta", [0.1, 0.3, 3.0, 7.0, 49.0])
@pytest.mark.parametrize("eta", [1e-17, 1e-30, 0.7])
def test_scales_are_rounded_up(zeta: float, eta: float) -> None:
    """In real arithmetic the one that leads gets enough: t zeta >= 1, log(2 / eta)."""
    t = assumption_2(sparsemax, zeta, eta, 3).scale
    assert t is not None
    assert Fraction(t) * Fraction(zeta) >= 1
    t = assumption_2(softmax, zeta, eta, 3).scale
    assert t is not None
    with localcontext() as context:
        context.prec = 60
        assert Decimal(t) * Decimal(zeta) >= (2 / Decimal(eta)).ln()


def test_many_scores_and_small_scales() -> None:
    many = assumption_2(softmax, eta=5e-324, m=10**18 + 1).scale
    assert many == pytest.approx(18 * np.log(10) - np.log(5e-324))
    with pytest.raises(InputError, match="a number of scores"):
        assumption_2(softmax, m=10**5000)
    least = assumption_2(entmax(1e300), zeta=1e308).scale
    assert least is not None
    assert least > 0


def liar(v: np.ndarray) -> np.ndarray:
    return v / v.sum()


class Equal:
    """What says that it is another function."""

    def __init__(self, other: object) -> None:
        self.other = other

    def __eq__(self, other: object) -> bool:
        return other is self.other

    def __hash__(self) -> int:
        return hash(self.other)

    def __call__(self, *given: Any) -> Any:
        return liar(*given) if len(given) == 1 else 1e-9


class Own(ProbabilityMap):
    def __call__(self, scores: np.ndarray) -> np.ndarray:
        return liar(scores)


def tiny(zeta: float, eta: float, m: int) -> float:
    return 1e-9


def failing(m: int) -> tuple[tuple[float, ...], float]:
    return (2.0, 1.0), 0.5


OTHERS = {
    "another function": replace(softmax, function=liar),
    "another scale": replace(softmax, scale=tiny),
    "no scale, but scores": replace(softmax, scale=None, failing=failing),
    "exact by its word": replace(softmax, one_hot=True),
    "made by hand": ProbabilityMap("softmax", liar, tiny, "t > 0"),
    "a function equal to softmax": replace(softmax, function=Equal(softmax.function)),
    "a scale equal to that of softmax": replace(softmax, scale=Equal(softmax.scale)),
    "a class of the user's": Own("softmax", softmax.function, softmax.scale, "t > 0"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_maps_that_are_not_the_librarys_are_never_decided(name: str) -> None:
    found = assumption_2(OTHERS[name], m=2)
    assert found.verdict is Verdict.UNKNOWN
    assert found.scale is None


def test_copies_of_the_librarys_maps_are_decided() -> None:
    for rho in (*GOOD, *BAD):
        assert assumption_2(copy.copy(rho)).verdict is assumption_2(rho).verdict
        assert assumption_2(copy.deepcopy(rho)).verdict is not Verdict.UNKNOWN
        assert is_own(replace(rho))
    assert is_own(pickle.loads(pickle.dumps(softmax)))
    assert not is_own(replace(softmax, name="my softmax"))
