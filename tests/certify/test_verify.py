"""The verdict on certificates as they were made: PROVED, REFUTED or UNKNOWN, and why."""

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.plans import as_known

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, TargetError
from everyformer.targets import GALLERY, reverse, smooth_rank
from everyformer.targets.target import Target


@cache
def built(name: str, grid: int = 4) -> ef.Built:
    return ef.construct(GALLERY[name](2, 1), grid=grid)


def save(of: ef.Built, folder: Path, certificate: ef.Certificate) -> Path:
    of.network.save(folder / NETWORK_FILE)
    certificate.save(folder)
    return folder


def rewrite(folder: Path, **changes: Any) -> None:
    """Change what the certificate says of the target."""
    place = folder / "certificate.json"
    values = json.loads(place.read_text())
    values["target"] |= changes
    place.write_text(json.dumps(values))


WAYS: dict[str, str] = {
    "expression": "the expression",
    "modulus": "any function with the values and the modulus",
}


@pytest.mark.rows(7)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", GALLERY)
def test_what_was_certified_is_proved(name: str, way: str, tmp_path: Path) -> None:
    certificate = as_known(built(name), way).certify()
    folder = save(built(name), tmp_path, certificate)
    found = ef.verify(folder)
    assert found.verdict is ef.Verdict.PROVED
    assert found.reasons == ()
    assert found.remarks == ()
    assert found.bound == certificate.bound
    assert found.float64_bound == certificate.float64_bound
    assert found.hypotheses == certificate.hypotheses
    first, *rest = str(certificate).replace(f"({name}, g)", "(f, g)").splitlines()
    where = f'where f is {WAYS[way]} in the file, called "{name}" by the file; 2 tokens'
    assert str(found).splitlines() == [first, f"{where} of 1 number in [0, 1]", *rest]
    again = ef.verify(folder, target=built(name).target)
    assert again.verdict is ef.Verdict.PROVED
    assert again.bound == certificate.bound
    assert len(again.remarks) == 1
    same = "is that of" if way == "expression" else "are those of"
    assert f"in the certificate {same} {name}" in again.remarks[0]


TARGETS = [
    Target(np.sin, 1, 1, name="one token"),
    Target(np.sin, 1, 2, equivariant=True, name="one token, Theorem 2"),
    Target(np.cos, 2, 1, domain=[(-2.0, 2.0)], name="a box"),
    Target(np.cos, 2, 1, domain=[(0.1, 0.3)], equivariant=True, name="a small box"),
    Target(np.tanh, 2, 2, domain=[(0, 1), (-1, 7)], name="two intervals"),
    Target(lambda x: np.abs(x - 0.3) + np.maximum(x, 0.6), 2, 1, name="kinks"),
    Target(lambda x: np.sqrt(x) + np.log(1 + x) / (2 - x), 2, 1, name="elementary"),
    Target(lambda x: 3 - 0 * x, 2, 1, name="constant"),
    Target(lambda x: 1e6 * x**3, 2, 1, name="large"),
    Target(lambda x: 1e-200 * x, 2, 1, name="tiny"),
]


@pytest.mark.rows(7)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("softened", [True, False], ids=["float64", "rational"])
def test_other_targets(target: Target, softened: bool, tmp_path: Path) -> None:
    of = ef.construct(
        target,
        grid=4 if target.d_model == 1 else 2,
        method=ef.SelectiveShifts(softened=softened),
    )
    of.save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", GALLERY)
def test_balls_prove_it_too(name: str, tmp_path: Path) -> None:
    """Another enclosure of the same program; where min or max bend, not as tight."""
    of = built(name)
    bound = of.certificate.float64_bound
    assert bound is not None
    tight = name in ("centring", "reverse", "first_token", "prefix_mean", "shift")
    eps = bound.value * Fraction("1.0001" if tight else "1.25")
    found = ef.verify(save(of, tmp_path, replace(of.certificate, eps=eps)), balls=True)
    assert found.verdict is ef.Verdict.PROVED
    assert found.bound is not None
    assert float(found.bound.value) >= 0.99 * distance_sampled(of)


def distance_sampled(of: ef.Built, by: float = 0.0) -> float:
    """d_2 between the target, moved by a constant, and the network."""
    x = np.random.default_rng(0).random((4096, 2, 1))
    gap = np.square(of.target(x) + by - of.network(x)).sum(axis=(1, 2))
    return float(np.sqrt(gap.mean()))


def moved(target: Target, by: float) -> Target:
    return Target(
        lambda x: target(x) + by,
        target.seq_len,
        target.d_model,
        equivariant=target.equivariant,
        lipschitz=target.lipschitz,
        modulus=target.modulus,
        name=f"moved {target.name}",
    )


def moved_and_traceable(target: Target, by: float) -> Target:
    return Target(
        lambda x: target.function(x) + by,
        target.seq_len,
        target.d_model,
        equivariant=target.equivariant,
        name=f"moved {target.name}",
    )


@pytest.mark.parametrize("name", ["reverse", "centring", "smooth_rank", "sort"])
def test_a_target_moved_by_4_eps_is_refuted(name: str, tmp_path: Path) -> None:
    """Each of the 2 entries is at least 4 eps - omega away; d_2 is sqrt(2) times that."""
    of = built(name, 8)
    for way in ("expression", "modulus"):
        certificate = as_known(of, way).certify()
        folder = save(of, tmp_path, certificate)
        assert certificate.eps is not None
        by = 4 * float(certificate.eps)
        make = moved_and_traceable if way == "expression" else moved
        found = ef.verify(folder, target=make(of.target, by))
        assert found.verdict is ef.Verdict.REFUTED
        assert "is at least" in found.reasons[0]
        least = float(found.reasons[0].split("at least ")[1].split(",")[0])
        assert float(certificate.eps) < least <= 1.01 * distance_sampled(of, by)
        assert "differ" in found.remarks[0]
        conditional = ", CONDITIONAL on the declared " if way == "modulus" else ": d_2("
        assert str(found).startswith(f"REFUTED{conditional}")


def test_a_target_that_is_no_match_is_refused(tmp_path: Path) -> None:
    built("reverse").save(tmp_path)
    for other in (reverse(3, 1), reverse(2, 2), Target(np.sin, 2, 1, domain=[(0, 2)])):
        with pytest.raises(CertificateError, match="Give the target it is about"):
            ef.verify(tmp_path, target=other)
    with pytest.raises(CertificateError, match="has no expression"):
        ef.verify(tmp_path, target=Target(np.floor, 2, 1, lipschitz=1))


def test_the_target_given_counts(tmp_path: Path) -> None:
    """A certificate with a false expression is caught by the function itself."""
    of = built("reverse")
    lying = replace(of, target=built("first_token").target).certify(eps=Fraction(1))
    save(of, tmp_path, lying)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED  # of what the file says
    assert lying.statement.name == "first_token"
    tight = replace(of.certificate, statement=lying.statement)
    save(of, tmp_path, tight)
    assert ef.verify(tmp_path).verdict is ef.Verdict.REFUTED
    assert ef.verify(tmp_path, target=of.target).verdict is ef.Verdict.PROVED


POLES = [
    Target(lambda x: 1 / x, 2, 1, name="1/x"),
    Target(np.log, 2, 1, name="log"),
    Target(lambda x: 1 / (x - 0.5 + 2**-20), 2, 1, name="a pole inside"),
]


@pytest.mark.parametrize("target", POLES, ids=lambda target: target.name)
def test_a_pole_is_undecided(target: Target, tmp_path: Path) -> None:
    """f is finite at the centres of all cells, so that the network can be built."""
    of = ef.construct(target, grid=2)
    certificate = of.certificate
    assert certificate.verdict is ef.Verdict.UNKNOWN
    assert certificate.bound is None
    assert certificate.distance_sampled is not None
    of.save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.UNKNOWN
    save(of, tmp_path, replace(certificate, eps=Fraction(1), claims=("real", "float64")))
    for balls in (False, True):
        found = ef.verify(tmp_path, balls=balls)
        assert found.verdict is ef.Verdict.UNKNOWN
        why = "target: f has no finite bound on cell ["
        assert all(reason.startswith(why) for reason in found.reasons)
    assert tuple(str(one) for one in certificate.obstacles) == found.reasons[:1]


def test_a_target_of_which_nothing_is_known(tmp_path: Path) -> None:
    of = ef.construct(Target(np.floor, 2, 1), grid=4)
    of.save(tmp_path)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN
    assert found.reasons[0].startswith("nothing is claimed")
    save(of, tmp_path, replace(of.certificate, eps=Fraction(9), claims=("real",)))
    assert ef.verify(tmp_path).verdict is ef.Verdict.UNKNOWN


STEEP = Target(lambda x: 3 * x, 2, 1, lipschitz=1, name="steep")


def test_a_false_constant_is_an_error_of_the_target() -> None:
    of = ef.construct(STEEP, grid=4)
    message = (
        r"steep declares max.f\(X\) - f\(Y\). <= 1 max.X - Y., which is false: entry "
        r"\[\d, 0\] of f differs by 0\.75 between cell \[.*\] \(centre .*\) and cell "
        r"\[.*\] \(centre .*\); the declared modulus allows 0\.25"
    )
    with pytest.raises(TargetError, match=message):
        as_known(of, "modulus").certify()
    assert of.certify().verdict is ef.Verdict.PROVED
    with pytest.raises(TargetError, match="which is false"):
        ef.construct(STEEP.untraced(), tol=0.5)


def test_a_constant_edited_down_is_refuted(tmp_path: Path) -> None:
    """Consistently: the constant, omega at half a cell, and omega at 1 and 2 cells."""
    of = built("reverse")
    certificate = as_known(of, "modulus").certify()
    for L in (Fraction(1, 2), Fraction(1, 100), Fraction(0)):
        save(of, tmp_path, certificate)
        steps = {"1": str(L / 4), "2": str(L / 2)}
        rewrite(tmp_path, lipschitz=str(L), omega=str(L / 8), steps=steps)
        found = ef.verify(tmp_path)
        assert found.verdict is ef.Verdict.REFUTED
        assert found.reasons[0].startswith("target: entry [")
        assert found.reasons[0].count("cell [") == 2
    rewrite(tmp_path, lipschitz="1", omega="0", steps={"1": "1/4", "2": "1/2"})
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.REFUTED
    assert "target: omega is stated as 0" in found.reasons[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"omega": "0"},
        {"omega": "1/1000"},
        {"omega": "0", "steps": {}},
        {"omega": "1/1000", "steps": {"1": "1/500", "2": "1/250"}},
        {"omega": "1/1000", "steps": {"2": "9", "4": "9"}},
    ],
)
def test_a_modulus_edited_down_is_refuted(changes: dict[str, Any], tmp_path: Path) -> None:
    """Neighbouring centres are half a cell from a common point: 2 omega must allow them."""
    target = Target(lambda x: x[..., ::-1, :], 2, 1, modulus=lambda r: r)
    of = ef.construct(target, grid=4)
    save(of, tmp_path, as_known(of, "modulus").certify())
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    rewrite(tmp_path, **changes)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.REFUTED
    assert found.reasons[0].startswith("target: entry [")


def test_a_modulus_that_is_larger_than_needed_is_fine(tmp_path: Path) -> None:
    target = replace_modulus(smooth_rank(2, 1))
    of = ef.construct(target, grid=4)
    save(of, tmp_path, as_known(of, "modulus").certify())
    assert ef.verify(tmp_path, target=target).verdict is ef.Verdict.PROVED


def replace_modulus(target: Target) -> Target:
    return Target(
        target.function, 2, 1, modulus=lambda r: 9 * r + 1, equivariant=True, name="rank"
    )


def test_only_the_claim_is_judged(tmp_path: Path) -> None:
    """eps between the two bounds: real is proved, float64 is not."""
    of = built("reverse")
    real, run = of.certificate.bound, of.certificate.float64_bound
    assert real is not None
    assert run is not None
    between = replace(of.certificate, eps=(real.value + run.value) / 2)
    save(of, tmp_path, between)
    found = ef.verify(tmp_path)
    assert found.verdict is ef.Verdict.UNKNOWN
    assert [reason.split("(")[1].split(")")[0] for reason in found.reasons] == ["float64"]
    save(of, tmp_path, replace(between, claims=("real",)))
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    save(of, tmp_path, replace(between, eps=real.value, claims=("real",)))
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED
    less = real.value - Fraction(1, 10**30)
    save(of, tmp_path, replace(between, eps=less, claims=("real",)))
    assert ef.verify(tmp_path).verdict is ef.Verdict.UNKNOWN


def test_a_verdict_is_no_bool(tmp_path: Path) -> None:
    built("reverse").save(tmp_path)
    with pytest.raises(TypeError, match="not a bool"):
        assert ef.verify(tmp_path).verdict
