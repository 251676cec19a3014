"""Bounds from the weights: above what is measured, close to it, the same everywhere."""

import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import qmc
from tests.plans import as_known

import everyformer as ef
from everyformer.certify import prove as prove_module
from everyformer.certify.proof import Proof
from everyformer.certify.prove import cells_of, prove
from everyformer.certify.verify import NETWORK_FILE
from everyformer.certify.weights import read_weights
from everyformer.errors import CertificateError
from everyformer.model.executor import ExecutorName
from everyformer.targets import GALLERY, centring, reverse, soft_attention
from everyformer.targets.target import Target

SMOOTH = {
    "centring",
    "soft_attention",
    "smooth_rank",
    "smooth_bump",
    "reverse",
    "prefix_mean",
    "shift",
    "first_token",
}
QMC_SLACK = 1e-4
"""Of the estimates below; the bound of a linear target is as close as 1e-6."""

WAYS: tuple[Literal["expression", "modulus"], ...] = ("expression", "modulus")


def inputs(target: Target, points: int = 1 << 17, seed: int = 1) -> np.ndarray:
    """Quasi-random points of the domain, with all 53 bits."""
    n, d = target.seq_len, target.d_model
    cube = qmc.Sobol(n * d, bits=53, rng=seed).random(points).reshape(-1, n, d)
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    return low + (high - low) * cube


def gaps(built: ef.Built, executor: ExecutorName, points: int = 1 << 17) -> np.ndarray:
    """|f - g|, entry by entry."""
    x = inputs(built.target, points)
    found = built.network(x, executor=executor)
    blocks = built.network(x[:256], executor="literal")
    assert (found[:256] == blocks).all(), "folded is not what the weights do"
    return np.abs(built.target(x) - found)


def p_mean(gap: np.ndarray, p: float, volume: Fraction = Fraction(1)) -> float:
    return float(((gap**p).sum(axis=(1, 2)).mean() * float(volume)) ** (1 / p))


@pytest.mark.rows(10)
@pytest.mark.parametrize("name", GALLERY)
@pytest.mark.parametrize(
    ("n", "d", "K", "exponents", "executor"),
    [
        (2, 1, 8, (1, 2, 4), "folded"),
        (2, 2, 4, (1, 2, 4), "folded"),
        (3, 1, 8, (2,), "folded"),
    ],
)
def test_bounds_are_above_the_distance_and_close_to_it(
    name: str, n: int, d: int, K: int, exponents: tuple[int, ...], executor: ExecutorName
) -> None:
    built = ef.construct(GALLERY[name](n, d), grid=K)
    gap = gaps(built, executor)
    for p in exponents:
        sampled = p_mean(gap, p)
        for way in WAYS:
            certificate = as_known(replace(built, p=Fraction(p)), way).certify()
            assert certificate.claims == ("real", "float64")
            assert certificate.bound is not None
            assert certificate.float64_bound is not None
            real = float(certificate.bound.value)
            run = float(certificate.float64_bound.value)
            assert sampled * (1 - QMC_SLACK) <= min(real, run)
            # p = 1 is bounded by the second moment: not tight where cells are few.
            if way == "expression" and name in SMOOTH and (p > 1 or d == 1):
                assert max(real, run) <= 4 * sampled


@pytest.mark.parametrize("way", WAYS)
def test_the_bound_falls_with_delta(way: Literal["expression", "modulus"]) -> None:
    """First order for Theorem 3; Theorem 2 loses measure n(n-1)/(2K) of equal columns."""
    values: list[float] = []
    for K in (4, 8, 16):
        certificate = as_known(ef.construct(reverse(2, 1), grid=K), way).certify()
        assert certificate.float64_bound is not None
        values.append(float(certificate.float64_bound.value))
    assert values[0] / values[1] == pytest.approx(2, rel=1e-3)
    assert values[1] / values[2] == pytest.approx(2, rel=1e-3)


def test_the_bound_of_a_smooth_target_falls_with_delta() -> None:
    """First order, once the slopes are nearly constant on a cell."""
    target = Target(np.sin, 2, 1)
    values = [ef.construct(target, grid=K).certificate.bound for K in (8, 16, 32)]
    first, second, third = (float(v.value) for v in values if v is not None)
    assert first / second == pytest.approx(2, rel=4e-2)
    assert second / third == pytest.approx(2, rel=1e-2)


def test_for_linear_targets_the_bound_is_the_distance() -> None:
    """sqrt(2) (1/K) / sqrt(12), and a little for the ramps."""
    for K in (4, 8):
        bound = ef.construct(reverse(2, 1), grid=K).certificate.bound
        assert bound is not None
        assert float(bound.value) == pytest.approx(1 / (K * 6**0.5), rel=1e-5)
        assert float(bound.value) > 1 / (K * 6**0.5)


def acceptance(x: np.ndarray) -> np.ndarray:
    """The target of spec/beyond.md, section 4."""
    mean = x.mean(axis=(-2, -1), keepdims=True)
    return np.sin(3 * x + np.arange(1, 3)[:, None]) * mean + x**2 / 2


@pytest.mark.rows(2)
@pytest.mark.parametrize(
    ("K", "mean_value"), [(16, 0.065678), (64, 0.014701), (128, 0.007649)]
)
def test_acceptance_values(K: int, mean_value: float) -> None:
    """Certified d_2 of spec/certificates.md, section 3: may be lower, never too low."""
    built = ef.construct(Target(acceptance, 2, 1), grid=K)
    gap = gaps(built, "folded")
    for bound in (built.certificate.bound, built.certificate.float64_bound):
        assert bound is not None
        assert p_mean(gap, 2) * (1 - QMC_SLACK) <= float(bound.value) <= mean_value


def test_other_domains_scale_the_bound() -> None:
    target = Target(np.sin, 2, 1, lipschitz=1, domain=[(-2, 2)])
    built = ef.construct(target, grid=16)
    sampled = p_mean(gaps(built, "literal", 1 << 14), 2, target.domain.volume(2))
    declared = as_known(built, "modulus").certify().bound
    traced = built.certify().bound
    assert declared is not None
    assert traced is not None
    assert sampled * (1 - 1e-2) <= float(traced.value) <= float(declared.value)
    # sqrt(volume 16 x 2 entries) times omega = (4/16)/2 times sqrt(N/(N + p)) = sqrt(1/2)
    assert float(declared.value) == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("name", ["reverse", "centring"])
def test_a_rational_network_is_exact(name: str) -> None:
    """No softmax, no ramps, no float64: all that is left is the table."""
    exact = ef.construct(
        GALLERY[name](2, 1), grid=8, method=ef.SelectiveShifts(softened=False)
    ).certificate
    real = ef.construct(GALLERY[name](2, 1), grid=8).certificate
    assert exact.claims == ("real",)
    assert exact.dtype == "rational"
    assert exact.float64_bound is None
    assert Fraction(exact.cells["radius"]) <= Fraction(1, 2**52)  # as float64 numbers
    assert exact.bound is not None
    assert real.bound is not None
    assert exact.bound <= real.bound.value
    assert not any("ramps" in term.reason for term in exact.bound.terms[0].terms)


def proof(built: ef.Built, p: Fraction, *, balls: bool = False) -> Proof:
    """What is proved of the weights as they are stored."""
    target = built.target
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NETWORK_FILE
        built.network.save(path)
        weights = read_weights(path)
    known = target.expression
    assert known is not None
    cells = cells_of(weights, target.domain, built.plan.cells, known, equivariant=False)
    return prove(weights, cells, known, p, balls=balls)


SHAPES = [(1, 1, 8), (1, 2, 4), (2, 1, 2), (2, 1, 4), (3, 1, 4), (2, 2, 2)]
EXPONENTS = [Fraction(1), Fraction(2), Fraction(5, 2), Fraction(7, 3), Fraction(20)]


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(GALLERY)),
    shape=st.sampled_from(SHAPES),
    p=st.sampled_from(EXPONENTS),
    positional=st.sampled_from([None, True]),
    balls=st.booleans(),
)
def test_the_distance_lies_between_the_bounds(
    name: str,
    shape: tuple[int, int, int],
    p: Fraction,
    positional: bool | None,
    balls: bool,
) -> None:
    n, d, K = shape
    built = ef.construct(
        GALLERY[name](n, d), grid=K, method=ef.SelectiveShifts(positional=positional)
    )
    found = proof(built, p, balls=balls)
    assert found.obstacles == ()
    sampled = p_mean(gaps(built, "literal", 1 << 12), float(p))
    slack = 0.05 if p < 8 else 0.2
    assert float(found.lower) ** (1 / float(p)) <= sampled * (1 + slack)
    for bound in (found.real, found.float64):
        assert bound is not None
        assert sampled * (1 - slack) <= float(bound.value)
        assert bound.is_consistent()


def test_balls_and_intervals_agree() -> None:
    """Enclosures of two kinds of the same program."""
    built = ef.construct(soft_attention(2, 1), grid=8)
    bounds = [proof(built, Fraction(2), balls=balls).real for balls in (False, True)]
    first, second = (float(bound.value) for bound in bounds if bound is not None)
    assert first == pytest.approx(second, rel=0.1)


def test_a_lower_bound_is_found_where_the_target_is_another() -> None:
    built = ef.construct(reverse(2, 1), grid=4)
    moved = replace(built, target=Target(lambda x: x[..., ::-1, :] + 3, 2, 1))
    found = proof(moved, Fraction(2))
    assert found.real is not None
    # The least |f - g| on a cell is 3 - 1/8; two entries.
    assert float(found.lower) == pytest.approx(2 * (3 - 1 / 8) ** 2, rel=1e-6)
    assert float(found.real.value) == pytest.approx(18**0.5, rel=1e-3)


def test_results_are_the_same_wherever_they_are_computed(tmp_path: Path) -> None:
    """Two shards: here, in two processes, from a folder that lost and damaged some."""
    built = ef.construct(centring(5, 1), grid=16)
    work = tmp_path / "work"
    seen: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))

    alone = built.certify(computing=ef.Computing(progress=progress)).to_json()
    assert seen[-1] == ("certify cells", 2, 2)
    together = built.certify(computing=ef.Computing(workers=2, work=work))
    assert together.to_json() == alone
    first, second = sorted(work.glob("*.json"))
    first.unlink()
    second.write_text(second.read_text().replace("1", "2", 1))
    resumed = built.certify(computing=ef.Computing(work=work, progress=progress))
    assert resumed.to_json() == alone
    assert seen[-3:] == [("certify cells", k, 2) for k in (0, 1, 2)]
    again = built.certify(computing=ef.Computing(work=work, progress=progress))
    assert again.to_json() == alone
    assert seen[-1] == ("certify cells", 2, 2)


def test_a_folder_of_shards_serves_one_proof_only(tmp_path: Path) -> None:
    """Other weights, another exponent, another way: nothing is taken from the folder."""
    built = ef.construct(reverse(2, 1), grid=4)
    computing = ef.Computing(work=tmp_path)
    built.certify(computing=computing)
    assert len(list(tmp_path.iterdir())) == 1
    for other in (
        replace(built, p=Fraction(1)),
        ef.construct(reverse(2, 1), grid=8),
        ef.construct(Target(lambda x: x + x[..., ::-1, :], 2, 1), grid=4),
    ):
        kept = other.certify(computing=computing)
        assert kept.to_json() == other.certify().to_json()
    other = as_known(built, "modulus")
    assert other.certify(computing=computing).to_json() == other.certify().to_json()
    assert len(list(tmp_path.iterdir())) == 5


def test_too_many_cells_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built = ef.construct(reverse(2, 1), grid=16)
    monkeypatch.setattr(prove_module, "MAX_REPRESENTATIVES", 255)
    with pytest.raises(CertificateError, match=r"256 cells .* limit of 255.*coarser"):
        built.certify()
    monkeypatch.setattr(prove_module, "MAX_REPRESENTATIVES", 256)
    assert built.certify().verdict is ef.Verdict.PROVED
