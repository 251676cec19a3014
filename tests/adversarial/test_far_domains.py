"""Domains at the ends of float64: a certificate that holds, or a refusal with numbers."""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.certify.certificate import LARGEST
from everyformer.construct.certificates import distance_sampled
from everyformer.errors import DomainError, EveryformerError, TargetError, ToleranceError
from everyformer.numerics.curvature import round_down, round_up
from everyformer.verdict import Verdict

DOMAINS = {
    "1e300": (-1e300, 1e300),
    "1e154": (-1e154, 1e154),
    "1e-300": (-1e-300, 1e-300),
    "one subnormal number": (0.0, 5e-324),
    "1/width overflows": (0.0, 5e-309),
    "one ulp": (1.0, 1 + 2.0**-52),
    "beyond the integers": (-1e16, 1e16),
    "the largest numbers": (1e308, 1.7e308),
    "wider than float64": (-1.7e308, 1.7e308),
}
METHODS = {
    "Theorem 2": ef.SelectiveShifts(positional=False),
    "Theorem 3": ef.SelectiveShifts(positional=True),
    "exact": ef.SelectiveShifts(softened=False),
    "URPE": ef.UrpeShifts(),
    "averaging": ef.Averaging(),
    "partition": ef.Partition(decay=1, margin=1),
    "sparse": ef.SparseShifts(ef.patterns.star(2)),
}


def negated(x: np.ndarray) -> np.ndarray:
    return -x


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", METHODS)
def test_a_certificate_or_a_refusal(method: str, tmp_path: Path) -> None:
    """Every domain; which exponent goes with which differs from method to method."""
    n = 2 if method in ("Theorem 2", "sparse") else 1
    for k, domain in enumerate(DOMAINS.values(), list(METHODS).index(method)):
        target = ef.Target(negated, n, 1, domain=[domain], equivariant=True)
        p = (1, 2, math.inf)[k % 3]
        try:
            built = ef.construct(target, method=METHODS[method], p=p, grid=2)
            proved = built.certificate
        except EveryformerError:
            continue
        if proved.verdict is Verdict.PROVED:
            assert proved.eps is not None
            assert proved.eps <= LARGEST
            built.save(tmp_path)
            assert ef.verify(tmp_path).verdict is Verdict.PROVED
            assert _largest_gap(built, domain) <= _allowed(proved, n)


def _largest_gap(built: ef.Built, domain: tuple[float, float]) -> Fraction:
    """At both ends, where no cell's plateau is farther away; exactly."""
    x = np.array(domain)[:, None, None].repeat(built.target.seq_len, axis=1)
    pairs = zip((-x).flat, built.network(x).flat, strict=True)
    return max(abs(Fraction(float(f)) - Fraction(float(g))) for f, g in pairs)


def _allowed(proved: ef.Certificate, n: int) -> Fraction:
    """|x| for a network that is off by the whole domain in a small share of it."""
    assert proved.eps is not None
    low, high = Fraction(proved.box.lows[0]), Fraction(proved.box.highs[0])
    if proved.p is None:
        return proved.eps
    return max(high - low, abs(low), abs(high)) + proved.eps / (high - low) ** n


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("method", ["averaging", "partition", "compile"])
def test_numbers_that_overflow_on_the_way_are_refused(method: str) -> None:
    """Volumes of 1e600, squares of 1e308, sums over cells that are infinite."""
    target = ef.Target(lambda x: x * x, 2, 1, domain=[(-1e154, 1e154)])
    with pytest.raises(EveryformerError):
        ef.construct(target, method=method, p=1, tol=0.1)
    if method == "averaging":
        found = ef.construct(target, grid=2, p=1, method=method).certificate
        assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("domain", [(2.0**999, 2.0**1000), (-(2.0**1000), 2.0**-1000)])
def test_the_farthest_domain_is_refused_for_what_it_is(
    domain: tuple[float, float],
) -> None:
    """Not as a damaged file: 2^1000 is an end that files may hold."""
    with pytest.raises(DomainError, match=r"follows numbers of at most 2\^200"):
        ef.construct(ef.Target(negated, 1, 1, domain=[domain]), method="compile", tol=0.1)


def test_the_interval_is_named() -> None:
    for domain, said in (((0.0, 5e-324), "4.941e-324"), ((1e308, 1.7e308), "7.000e+307")):
        with pytest.raises(TargetError, match=said.replace("+", r"\+")):
            ef.construct(ef.Target(negated, 1, 1, domain=[domain]), grid=2)
    with pytest.raises(ToleranceError, match="from 5e-324 to"):
        ef.construct(ef.Target(negated, 1, 1), tol=1e302)


def test_distances_are_measured_beyond_float64() -> None:
    """g = 0 and f = -1e150 on [0, 1e150]^2: d_1 = 2e450, d_2 = sqrt(2) 1e300."""
    target = ef.Target(lambda x: 0 * x - 1e150, 2, 1, domain=[(0.0, 1e150)])
    network = ef.construct(target, grid=2, method="averaging").network
    nothing = ef.Target(lambda x: 0 * x, 2, 1, domain=[(0.0, 1e150)])
    assert distance_sampled(network, nothing, 1.0) == math.inf
    found = distance_sampled(network, nothing, 2.0)
    assert found == pytest.approx(2**0.5 * 1e300, rel=1e-9)


def test_rounding_beyond_float64() -> None:
    large = Fraction(10) ** 400
    assert (round_down(large), round_up(large)) == (np.finfo(np.float64).max, math.inf)
    assert (round_down(-large), round_up(-large)) == (
        -math.inf,
        -np.finfo(np.float64).max,
    )
