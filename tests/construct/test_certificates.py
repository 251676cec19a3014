"""Certificates of networks that were just built."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from tests.plans import constants_of, declared

import everyformer as ef
from everyformer.construct.certificates import certify, distance_sampled
from everyformer.errors import TargetError
from everyformer.targets import GALLERY, centring, reverse, smooth_rank
from everyformer.targets.target import Target


def reasons(bound: ef.Bound | None) -> list[str]:
    """The parts of a tree of bounds, by name."""
    assert bound is not None
    parts = [term.reason for term in bound.terms[0].terms]
    return [reason.split(":")[0] for reason in parts]


def test_the_parts_of_a_bound() -> None:
    """Theorem 2 has cells with equal columns, Theorem 3 none; rationals have no ramps."""
    theorem_2 = ef.construct(centring(2, 1), grid=16).certificate
    assert reasons(theorem_2.bound) == ["cells", "duplicates", "ramps"]
    assert reasons(theorem_2.float64_bound) == ["cells", "duplicates", "ramps"]
    theorem_3 = ef.construct(reverse(2, 1), grid=16).certificate
    assert reasons(theorem_3.bound) == ["cells", "ramps"]
    modified = ef.construct(
        centring(2, 1), grid=16, method=ef.SelectiveShifts(softened=False)
    ).certificate
    assert reasons(modified.bound) == ["cells", "duplicates"]
    one_token = ef.construct(centring(1, 1), grid=16).certificate
    assert reasons(one_token.bound) == ["cells", "ramps"]


def test_ramps_cost_what_they_measure() -> None:
    """3 ramps of width 2^-30 for each of 2 tokens; 2 entries, both in [0, 1]."""
    certificate = ef.construct(reverse(2, 1), grid=4).certificate
    assert certificate.bound is not None
    ramps = certificate.bound.terms[0].terms[-1]
    share = 2 * 3 * 2.0**-30
    assert float(ramps.value) == pytest.approx(np.sqrt(2 * share), rel=0.2)


def test_the_certificate_is_made_once_and_kept() -> None:
    built = ef.construct(reverse(2, 1), grid=4)
    assert built.proved is None
    assert built.certificate is built.certificate
    to_tolerance = ef.construct(reverse(2, 1), tol=0.2)
    assert to_tolerance.proved is not None
    assert to_tolerance.certificate is to_tolerance.proved


def test_what_is_recorded() -> None:
    built = ef.construct(centring(2, 1), grid=8, p=1)
    certificate = built.certificate
    assert certificate.grid == 8
    assert (certificate.seq_len, certificate.d_model) == (2, 1)
    assert certificate.box == built.target.domain
    assert certificate.p == 1
    assert certificate.dtype == "float64"
    assert certificate.blocks == built.network.blocks
    assert certificate.cells["count"] == 64
    assert certificate.cells["representatives"] == 36  # pairs, up to order
    assert certificate.distance_sampled is None
    assert certificate.obstacles == ()
    assert set(certificate.versions) >= {"everyformer", "numpy", "python-flint"}


def test_eps_is_the_bound_rounded_up_or_what_was_asked_for() -> None:
    built = ef.construct(reverse(2, 1), grid=4)
    certificate = built.certify()
    assert certificate.eps == Fraction("0.1021")
    assert built.certify(eps=Fraction(1, 2)).eps == Fraction(1, 2)
    assert built.certify(eps=Fraction(1, 2)).verdict is ef.Verdict.PROVED
    below = built.certify(eps=Fraction(1, 10))
    assert below.verdict is ef.Verdict.UNKNOWN
    assert below.bound == certificate.bound


def test_ways_to_know_a_target() -> None:
    built = ef.construct(reverse(2, 1), grid=4)
    assert built.certify().statement.kind == "expression"
    assert declared(built).certify().statement.kind == "modulus"
    untraced = ef.construct(Target(np.sin, 2, 1, lipschitz=1, trace=False), grid=4)
    assert untraced.certify().statement.kind == "modulus"
    opaque = ef.construct(Target(np.cbrt, 2, 1, modulus=np.cbrt), grid=4)
    assert opaque.certify().statement.kind == "modulus"
    undeclared = ef.construct(Target(np.sin, 2, 1), grid=4)
    nothing = declared(undeclared).certify()
    assert nothing.verdict is ef.Verdict.UNKNOWN
    assert "no modulus is declared, and no trace: trace=False" in str(nothing)
    assert undeclared.certify().statement.kind == "expression"


@pytest.mark.parametrize("name", ["reverse", "smooth_rank"])
def test_the_declared_way_allows_more_than_the_traced(name: str) -> None:
    built = ef.construct(GALLERY[name](2, 1), grid=16)
    traced, allowed = built.certify().bound, declared(built).certify().bound
    assert traced is not None
    assert allowed is not None
    assert traced <= allowed.value


def test_false_declarations() -> None:
    """A constant, a modulus that is too small at one distance only, a false symmetry."""
    steep = Target(lambda x: 2 * x, 2, 1, lipschitz=Fraction(3, 2), name="steep")
    message = r"steep declares .* which is false: .* between cell \[.* and cell \[.* allows"
    with pytest.raises(TargetError, match=message):
        declared(ef.construct(steep, grid=8)).certify()

    def flat_then_steep(r: float) -> float:
        return 0.3 if 0.2 < r < 0.3 else 2 * r

    late = Target(lambda x: 2 * x, 2, 1, modulus=flat_then_steep, name="late")
    with pytest.raises(TargetError, match=r"differs by 0\.5 .* allows 0\.3"):
        declared(ef.construct(late, grid=8)).certify()
    assert ef.construct(late, grid=8).certify().verdict is ef.Verdict.PROVED


def test_symmetry_is_proved_where_f_is_traced() -> None:
    """Equivariant as far as the table shows, and not so: all cells are examined."""

    def function(x: np.ndarray) -> np.ndarray:
        ripple = np.cos(4 * np.pi * x)  # 0 at the centres of 4 cells
        return x + ripple * np.array([[0.0], [1.0]])

    built = ef.construct(Target(function, 2, 1, equivariant=True), grid=4)
    assert constants_of(built.plan).theorem == "Theorem 2"
    certificate = built.certificate
    assert certificate.cells["representatives"] == certificate.cells["count"] == 16
    assert certificate.bound is not None
    sampled = distance_sampled(built.network, built.target, 2.0)
    assert 0.7 < sampled <= 1.01 * float(certificate.bound.value)


def test_a_measurement_is_no_bound() -> None:
    built = ef.construct(reverse(2, 1), grid=4)
    sampled = distance_sampled(built.network, built.target, 2.0)
    assert sampled == pytest.approx(0.102, rel=0.02)
    assert distance_sampled(built.network, built.target, 2.0) == sampled
    assert distance_sampled(built.network, built.target, 1.0) > sampled
    box = Target(lambda x: x, 2, 1, domain=[(0, 4)])
    wide = ef.construct(box, grid=4)
    assert distance_sampled(wide.network, box, 2.0) == pytest.approx(1.633, rel=0.02)


def test_weights_of_any_origin_can_be_certified(tmp_path: Path) -> None:
    """Nothing is known of a network that was loaded but its weights."""
    built = ef.construct(smooth_rank(2, 1), grid=4)
    built.network.save(tmp_path / "network.safetensors")
    loaded = replace(ef.load(tmp_path / "network.safetensors"), construction=None)
    certificate = certify(loaded, built.target, grid=4, p=Fraction(2))
    assert certificate.bound == built.certificate.bound
    assert certificate.float64_bound == built.certificate.float64_bound


def test_saving_makes_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    ef.construct(reverse(2, 1), grid=4).save(folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"network.safetensors", "certificate.json"}
    assert ef.verify(folder).verdict is ef.Verdict.PROVED
