"""Tampered networks of every method: nothing false is PROVED, nothing true REFUTED."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.adversarial import attack
from tests.adversarial.attack import run_case
from tests.adversarial.remembered import Remembered
from tests.adversarial.subjects import SUBJECTS, write_subjects

import everyformer as ef
from everyformer.certify.bound import Bound
from everyformer.verdict import Verdict

CASES, PARTS = 5 * len(SUBJECTS), 5
"""As many as show a lie at every method, below; `make attack` runs 300 of them."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_subjects(tmp_path_factory.mktemp("subjects"))


@pytest.fixture(scope="module")
def kept() -> Remembered:
    return Remembered(attack.measure)


@pytest.fixture(autouse=True)
def remembered(kept: Remembered, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attack.ef, "verify", kept.verify)
    monkeypatch.setattr(attack, "measure", kept.measure)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("part", range(PARTS))
def test_tampered_networks(part: int, folders: dict[str, Path]) -> None:
    outcomes = [run_case(number, 0, folders) for number in range(part, CASES, PARTS)]
    assert not [one for one in outcomes if one.wrong]
    assert {one.said for one in outcomes} >= {"PROVED", "UNKNOWN"}


def test_a_verifier_whose_bounds_are_too_small_is_caught(
    folders: dict[str, Path], kept: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth of each bound: the judge sees it at every method."""

    def smaller(found: ef.Verification) -> ef.Verification:
        def part(bound: Bound | None) -> Bound | None:
            return None if bound is None else replace(bound, value=bound.value / 20)

        proof = found.proof
        lying = replace(proof, real=part(proof.real), float64=part(proof.float64))
        return replace(found, proof=lying)

    monkeypatch.setattr(attack.ef, "verify", kept.lying(smaller))
    outcomes = [run_case(number, 0, folders) for number in range(CASES)]
    caught = {one.subject for one in outcomes if one.wrong == "false PROVED"}
    assert caught == set(SUBJECTS)


def test_a_verifier_that_refutes_the_truth_is_caught(
    folders: dict[str, Path], kept: Remembered, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuting(found: ef.Verification) -> ef.Verification:
        return replace(found, verdict=Verdict.REFUTED)

    monkeypatch.setattr(attack.ef, "verify", kept.lying(refuting))
    outcomes = [run_case(number, 0, folders) for number in range(2 * len(SUBJECTS))]
    caught = {one.subject for one in outcomes if one.wrong == "false REFUTED"}
    assert len(caught) > len(SUBJECTS) // 2
