"""Tamper with compiled networks, verify them, and measure what PROVED is worth.

    python -m tests.adversarial.compile_attack --cases 10000 --seed 1 --workers 2
    python -m tests.adversarial.compile_attack --seed 1 --only 4711 --keep out/

As `attack` does, for networks of method="compile": where the verifier gives a bound, the
network is run in every way that the hypotheses allow, and in real arithmetic. A distance
above a bound is a false proof; there is no slack. Exit code 0: none was found.
"""

import shutil
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from tests.adversarial.attack import REFUSED, Outcome, command
from tests.adversarial.compile_measuring import measure
from tests.adversarial.compile_subjects import write_subjects
from tests.adversarial.compile_tampering import tamper

import everyformer as ef
from everyformer.certify.bound import Bound
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, WorkLimitError

SLOW = 60.0
"""Seconds of one process: a case of a few kilobytes that takes longer is a finding."""


def in_sup(found: ef.Verification, bound: Bound | None) -> float:
    """The bound as one of the supremum: d_p <= (n d vol)^(1/p) sup, with equality here."""
    if bound is None:
        return np.inf
    p = found.certificate.p
    if p is None or found.certificate.grid is not None:
        return float(bound.value)
    n, d = found.certificate.seq_len, found.certificate.d_model
    volume = float(found.certificate.box.volume(n))
    return float(bound.value) / (n * d * volume) ** (1 / float(p)) * (1 + 1e-12)


def run_case(
    number: int, seed: int, folders: dict[str, Path], keep: Path | None = None
) -> Outcome:
    """Tamper, verify, measure."""
    rng = np.random.default_rng([seed, number])
    subject = sorted(folders)[number % len(folders)]
    place = Path(tempfile.mkdtemp()) if keep is None else keep
    place.mkdir(exist_ok=True, parents=True)
    changes: tuple[str, ...] = ()
    try:
        changes = tamper(folders[subject], place, rng)
        case = partial(Outcome, subject, number, changes)
        began = time.process_time()
        try:
            found = ef.verify(place)
        except (CertificateError, WorkLimitError) as error:
            return case(REFUSED, note=str(error))
        took = time.process_time() - began
        said = found.verdict.name
        if took > SLOW:
            return case(said, "crash", note=f"took {took:.0f} s")
        if found.bound is None and found.float64_bound is None:
            wrong = "" if said == "UNKNOWN" else "false REFUTED"
            return case(said, wrong, note="; ".join(found.reasons))
        f = found.certificate.statement.expression
        assert f is not None
        network = ef.load(place / NETWORK_FILE)
        measured = measure(f, found.certificate.box, network, rng)
        real, run = in_sup(found, found.bound), in_sup(found, found.float64_bound)
        told = (
            f"real {measured.real:.6g} of {real:.6g}, "
            f"run {measured.run:.6g} of {run:.6g} ({measured.way})"
        )
        wrong = "false PROVED" if measured.real > real or measured.run > run else ""
        shares = [a / b for a, b in ((measured.real, real), (measured.run, run)) if b > 0]
        return case(said, wrong, max(shares, default=None), told)
    except Exception as error:  # anything else is a finding
        return Outcome(subject, number, changes, "error", "crash", note=repr(error))
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)


def smaller(found: ef.Verification, share: int) -> ef.Verification:
    """What a verifier would say whose bounds are too small."""

    def part(bound: Bound | None) -> Bound | None:
        return None if bound is None else replace(bound, value=bound.value / share)

    proof = replace(
        found.proof, real=part(found.proof.real), float64=part(found.proof.float64)
    )
    return replace(found, proof=proof)


if __name__ == "__main__":
    sys.exit(command((__doc__ or "").splitlines()[0], run_case, write_subjects))
