"""Tamper with certified networks, verify them, and measure what PROVED is worth.

    python -m tests.adversarial.attack --cases 10000 --seed 1
    python -m tests.adversarial.attack --seed 1 --only 4711 --keep out/

Every case changes the weights or the certificate of a small network of some method, brings
the hashes up to date, and asks the verifier. Where it gives a bound, the network is run and
compared with f: a distance above the bound is a false proof, a distance certainly below eps
with the verdict REFUTED a false refutation. Exit code 0: none was found. Ctrl-C ends it
with the counts so far; `--out` keeps them.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tests.adversarial.measuring import Measured, measure
from tests.adversarial.subjects import write_subjects
from tests.adversarial.tampering import tamper

import everyformer as ef
from everyformer.bench.results import environment
from everyformer.certify.verify import NETWORK_FILE
from everyformer.errors import CertificateError, EveryformerError
from everyformer.verdict import Verdict

SLACK = 1e-9
"""Relative, and 1e-12 absolute: what evaluating f in float64 may add to a distance."""

REFUSED, NOT_RUN = "refused", "not run"
BAD = ("false PROVED", "false REFUTED", "crash")

Case = Callable[..., "Outcome"]
"""case(number, seed, folders, keep): tamper, verify, measure."""


@dataclass(frozen=True)
class Outcome:
    """What became of one case.

    Attributes:
        subject: The method of the network.
        number: The case.
        changes: What was changed.
        said: The verdict, or "refused".
        wrong: One of `BAD`, or "".
        ratio: Measured distance / proved bound, where both are there.
        note: The numbers, or the error.
    """

    subject: str
    number: int
    changes: tuple[str, ...]
    said: str
    wrong: str = ""
    ratio: float | None = None
    note: str = ""


def judge(found: ef.Verification, measured: Measured, *, exact: bool) -> tuple[str, str]:
    """Whether a verdict is false, by what was measured; in words with numbers.

    A run in float64 says nothing of real arithmetic where only that is bounded, unless the
    weights are rationals and were run as such.
    """
    bounds = {"real": found.bound, "float64": found.float64_bound}
    known = {name: bound for name, bound in bounds.items() if bound is not None}
    low = measured.low * (1 - SLACK) - 1e-12
    for name, bound in known.items():
        if (exact or "float64" in known) and low > float(bound.value):
            told = f"measured {measured.low:.6g}, {name} bound {float(bound.value):.6g}"
            return "false PROVED", told
    eps = found.certificate.eps
    high = measured.high * (1 + SLACK) + 1e-12
    if found.verdict is Verdict.REFUTED and eps is not None and high < float(eps):
        told = f"measured at most {measured.high:.6g}, refuted {float(eps):.6g}"
        return "false REFUTED", told
    return "", ""


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
        try:
            found = ef.verify(place)
        except CertificateError as error:
            return case(REFUSED, note=str(error))
        said = found.verdict.name
        if found.bound is None and found.float64_bound is None and said != "REFUTED":
            return case(said, note="; ".join(found.reasons))
        try:
            network = ef.load(place / NETWORK_FILE)
            measured = measure(found.certificate, network, rng)
        except EveryformerError as error:
            wrong = "crash" if said == "PROVED" and "domain" not in str(error) else ""
            return case(said, wrong, note=f"{NOT_RUN}: {error}")
        wrong, note = judge(found, measured, exact=network.is_exact)
        tightest = found.float64_bound or (found.bound if network.is_exact else None)
        ratio = None
        if tightest is not None and tightest.value > 0:
            ratio = measured.low / float(tightest.value)
        return case(said, wrong, ratio, note)
    except Exception as error:  # anything else is a finding
        return Outcome(subject, number, changes, "error", "crash", note=repr(error))
    finally:
        if keep is None:
            shutil.rmtree(place, ignore_errors=True)


def attack(
    case: Case, cases: Iterable[int], seed: int, folders: dict[str, Path], workers: int
) -> Iterator[Outcome]:
    """The outcomes of cases, in order."""
    work = partial(case, seed=seed, folders=folders)
    if workers == 1:
        yield from map(work, cases)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, cases, chunksize=16)


VERDICTS = ("PROVED", "REFUTED", "UNKNOWN", REFUSED)


def counted(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Counts by method and of all, and how near to a proved bound a measurement came."""
    rows: list[dict[str, Any]] = []
    for subject in [*sorted({one.subject for one in outcomes}), "all"]:
        own = [one for one in outcomes if subject in (one.subject, "all")]
        said = Counter(one.said for one in own)
        wrong = Counter(one.wrong for one in own)
        rows.append(
            {
                "method": subject,
                "cases": len(own),
                **{verdict: said[verdict] for verdict in VERDICTS},
                "largest": max(
                    (q for one in own if (q := one.ratio) is not None), default=None
                ),
                "false": wrong["false PROVED"] + wrong["false REFUTED"],
                "crashes": wrong["crash"],
            }
        )
    return rows


def table(outcomes: list[Outcome]) -> Table:
    """The counts, for people."""
    shown = Table(title=f"{len(outcomes):,} tampered networks")
    shown.add_column("method", no_wrap=True)
    for name in ("cases", *VERDICTS, "largest measured/proved", "false", "crashes"):
        shown.add_column(name, justify="right")
    for row in counted(outcomes):
        largest = "" if row["largest"] is None else f"{row['largest']:.4f}"
        shown.add_row(
            row["method"],
            *(f"{row[name]:,}" for name in ("cases", *VERDICTS)),
            largest,
            str(row["false"]),
            str(row["crashes"]),
        )
    return shown


def command(what: str, case: Case, subjects: Callable[[Path], dict[str, Path]]) -> int:
    """Attack from the shell.

    Args:
        what: What is done, in one line.
        case: Runs the case of a number.
        subjects: Writes the networks to tamper with.
    """
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--cases", type=int, default=300, help="how many (300)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (0)")
    parser.add_argument("--only", type=int, help="one case, by its number")
    parser.add_argument("--keep", type=Path, help="with --only: write the case there")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--out", type=Path, help="write the counts there, as JSON")
    given = parser.parse_args()
    if given.cases < 1 or given.workers < 1:
        parser.error("--cases and --workers count from 1")
    if given.keep is not None and given.only is None:
        parser.error("--keep goes with --only")
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        folders = subjects(Path(folder))
        if given.only is not None:
            one = case(given.only, given.seed, folders, given.keep)
            console.print(one)
            return int(bool(one.wrong))
        cases = range(given.cases)
        running = attack(case, cases, given.seed, folders, given.workers)
        outcomes: list[Outcome] = []
        try:
            outcomes.extend(track(running, "tampering", given.cases, console=console))
        except KeyboardInterrupt:
            console.print(f"Stopped after {len(outcomes):,} of {given.cases:,} cases.")
    console.print(table(outcomes))
    if given.out is not None:
        report = {"theme": "attack", "environment": environment(), "seed": given.seed}
        report["rows"] = counted(outcomes)
        given.out.write_text(json.dumps(report, indent=1) + "\n")
    bad = [one for one in outcomes if one.wrong]
    for one in bad:
        told = f"case {one.number} ({one.subject}; {', '.join(one.changes)})"
        console.print(f"{one.wrong.upper()}: {told}: {one.note}", markup=False)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(command((__doc__ or "").splitlines()[0], run_case, write_subjects))
