"""What is declared of f is called false only where it is: not by a rounding, nor a slip."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import everyformer as ef
from everyformer.errors import CertificateError, TargetError

SLOPE = 1000.0


def ramp(x: np.ndarray) -> np.ndarray:
    """Of slope 1000 exactly; not traced."""
    return SLOPE * (np.asarray(x, dtype=np.float64) - 100.0)


def on_far_cells(lipschitz: float) -> ef.Built:
    """The interval is 1e8 times narrower than its distance from 0: centres are rounded."""
    domain = [(100.0, 100.0 + 1e-6)]
    target = ef.Target(ramp, 1, 1, domain=domain, lipschitz=lipschitz)
    return ef.construct(target, grid=7, method="averaging")


def stated(folder: Path, lipschitz: Fraction, omega: Fraction) -> None:
    place = folder / "certificate.json"
    values = json.loads(place.read_text())
    values["target"] |= {"lipschitz": str(lipschitz), "omega": str(omega)}
    place.write_text(json.dumps(values))


def test_a_true_constant_is_not_refuted_by_rounded_centres(tmp_path: Path) -> None:
    built = on_far_cells(SLOPE)
    assert built.certificate.verdict is ef.Verdict.PROVED
    built.save(tmp_path)
    assert ef.verify(tmp_path).verdict is ef.Verdict.PROVED


def test_a_false_constant_is_refused_there() -> None:
    with pytest.raises(TargetError, match="which is false"):
        _ = on_far_cells(SLOPE * 0.999).certificate


@pytest.mark.parametrize("lipschitz", ["2", "11/10", "3/2"])
def test_an_omega_of_another_constant_is_no_refutation(
    lipschitz: str, tmp_path: Path
) -> None:
    """f has the constant 1, and so any larger one: the file is damaged, no claim false."""
    target = ef.Target(lambda x: np.asarray(x) * 1.0, 2, 1, lipschitz=1.0)
    ef.construct(target.untraced(), grid=4).save(tmp_path)
    stated(tmp_path, Fraction(lipschitz), Fraction(1, 8))
    with pytest.raises(CertificateError, match="target: omega is stated as 1/8"):
        ef.verify(tmp_path)
