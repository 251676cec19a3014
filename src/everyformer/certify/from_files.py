"""Check a certificate from the weights and the certificate alone, trusting neither.

    1. formats and hashes              a mismatch is an error, not a verdict
    2. ramps, thresholds, ids, windows and values, from the weights
    3. f on every cell, from its expression or its declared modulus
    4. the sums, the ramps, the tree of bounds
    5. the comparison with eps

The numbers in the certificate are not used: only its claim is, and what it says of f.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from everyformer.certify.bound import Bound
from everyformer.certify.certificate import (
    Certificate,
    Statement,
    format_decimal,
)
from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.hypotheses import Claim
from everyformer.certify.known import Declared
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.modulus import (
    contradiction,
    half_cell,
    step_length,
    step_sizes,
)
from everyformer.certify.proof import Computing, Proof
from everyformer.certify.prove import cells_of, check_sizes, prove, prove_everywhere
from everyformer.certify.verification import Verification
from everyformer.certify.weights import Weights, read_weights
from everyformer.certify.work import MAX_WORK, Limits, check_files
from everyformer.errors import CertificateError
from everyformer.files.names import NETWORK_FILE
from everyformer.files.network_file import MAX_MEMORY
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Grid
from everyformer.verdict import Verdict

REGION_NEEDS_EXPRESSION = (
    "The distance is over a region, and f is known by a declaration, which is about the "
    "whole box. Make f traceable, or leave the region out."
)
Restate = Callable[[Certificate, Weights, Limits], tuple[Statement, list[str]]]
"""What f is, and remarks on what the certificate says of it."""


def verify_files(
    folder: str | os.PathLike[str],
    computing: Computing = Computing(),  # noqa: B008
    *,
    restate: Restate | None = None,
    balls: bool = False,
    max_work: int | float = MAX_WORK,
    max_memory: int | float = MAX_MEMORY,
) -> Verification:
    """Check the certificate in a folder against the weights beside it.

    Args:
        folder: Holds certificate.json and network.safetensors.
        computing: Where the work runs.
        restate: Says anew what f is, from f itself; otherwise the file's word counts.
        balls: Enclose f in Arb balls on every cell, instead of float64 intervals first.
        max_work: Seconds on one core that it may take, by an estimate made first.
        max_memory: Bytes that it may need, by that estimate; also the size of a file.

    Raises:
        CertificateError: If a file is damaged, or a hash does not match: no verdict.
        WorkLimitError: If more work or memory would be needed: no verdict either.
        FileNotFoundError: If a file is missing.
        InputError: If a limit is not a positive number.
    """
    place, limits = Path(folder), Limits(max_work, max_memory)
    check_files(place, limits)
    certificate = read_certificate(place)
    weights = read_weights(place / NETWORK_FILE, max_memory)
    check_same(certificate, weights, place)
    statement, remarks = certificate.statement, list[str]()
    if restate is not None:
        statement, remarks = restate(certificate, weights, limits)

    def found(
        verdict: Verdict,
        reasons: Sequence[str],
        proof: Proof = Proof(),  # noqa: B008
        *,
        contradicted: bool = False,
    ) -> Verification:
        return Verification(
            verdict,
            tuple(dict.fromkeys(reasons)),
            tuple(remarks),
            proof,
            certificate,
            statement,
            restate is not None,
            contradicted,
        )

    if statement.kind == "nothing" or certificate.eps is None or not certificate.claims:
        why = "nothing is claimed"
        if statement.kind == "nothing":
            why += ": f has neither an expression nor a declared modulus"
        return found(Verdict.UNKNOWN, [why])
    box, p = certificate.box, certificate.p
    if certificate.grid is None:
        f, on_box = statement.expression, certificate.on_box
        proof = prove_everywhere(weights, box, f, p, limits, on_box=on_box)
    else:
        cells, known = cells_and_known(certificate, statement, weights, limits)
        if isinstance(known, Declared):
            false = _false_declaration(statement, cells, known)
            if false:
                return found(Verdict.REFUTED, [f"target: {false}"], contradicted=True)
        proof = prove(
            weights,
            cells,
            known,
            p,
            computing,
            balls=balls,
            purpose="verify",
            grid=Grid(certificate.grid, certificate.seq_len, box),
        )
    name = "f" if restate is None else statement.name
    verdict, reasons = _judge(certificate, proof, name)
    remarks += _compared(certificate, proof)
    return found(verdict, reasons, proof)


def check_same(certificate: Certificate, weights: Weights, place: Path) -> None:
    """Refuse weights that the certificate is not about.

    Raises:
        CertificateError: If hash, sizes or kind of numbers are others.
    """
    if weights.sha256 != certificate.weights_sha256:
        msg = (
            f"{place / NETWORK_FILE} has sha256 {weights.sha256[:16]}…, but the "
            f"certificate is about weights with {certificate.weights_sha256[:16]}…. One of "
            "the two was changed or belongs elsewhere; construct again."
        )
        raise CertificateError(msg)
    sizes = (weights.seq_len, weights.d_model)
    stated = (certificate.seq_len, certificate.d_model)
    dtype = "rational" if weights.exact else "float64"
    if sizes != stated or dtype != certificate.dtype:
        msg = (
            f"The certificate is about n, d = {stated} and {certificate.dtype} weights, "
            f"the network has {sizes} and {dtype}. They do not belong together."
        )
        raise CertificateError(msg)


def cells_and_known(
    certificate: Certificate, statement: Statement, weights: Weights, limits: Limits
) -> tuple[Cells, Expression | Declared]:
    """The cells that a certificate is about, and what the statement says of f on them.

    Raises:
        CertificateError: If the values do not belong to the cells.
        WorkLimitError: If examining the cells would take too long.
        TargetError: If the region is not inside the box.
    """
    assert certificate.grid is not None, "the claim is about cells"  # noqa: S101
    cells = cells_of(
        weights,
        certificate.box,
        certificate.grid,
        statement.expression,
        equivariant=statement.equivariant,
        limits=limits,
        region=certificate.region,
        everywhere=certificate.everywhere,
    )
    return cells, known_of(statement, cells)


def known_of(statement: Statement, cells: Cells) -> Expression | Declared:
    """What a statement says of f, for the prover.

    Raises:
        CertificateError: If the values do not belong to the cells.
    """
    if statement.expression is not None:
        return check_sizes(statement.expression, cells.grid.seq_len, cells.grid.d_model)
    if cells.region is not None:
        raise CertificateError(REGION_NEEDS_EXPRESSION)
    assert statement.omega is not None, "the kind is modulus"  # noqa: S101
    assert statement.values is not None, "the kind is modulus"  # noqa: S101
    expected = (cells.count, cells.grid.seq_len, cells.grid.d_model)
    if statement.values.shape != expected:
        msg = (
            f"The values of f have shape {statement.values.shape}, the cells need "
            f"{expected}. They do not belong together; construct again."
        )
        raise CertificateError(msg)
    radius = half_cell(cells.grid)
    return Declared(statement.values, statement.omega, statement.lipschitz, radius)


def _false_declaration(statement: Statement, cells: Cells, known: Declared) -> str | None:
    """Two cells that contradict the declared modulus, in words.

    Raises:
        CertificateError: If no cells do, and omega is not that of the constant.
    """
    allowed, slip = dict(statement.steps), ""
    if statement.lipschitz is not None:
        L, grid = statement.lipschitz, cells.grid
        allowed = {k: L * step_length(grid, k) for k in step_sizes(grid)}
        half = half_cell(grid)
        if statement.omega != L * half:
            slip = f"omega is stated as {statement.omega}, but {L} times {half} is not that"
    # Neighbouring cells meet in a point half a cell from either centre.
    twice = 2 * known.omega
    allowed[1] = min(allowed.get(1, twice), twice)
    found = contradiction(cells, known.values, allowed)
    if found is None and slip:
        raise CertificateError(f"target: {slip}. Construct again.")
    return None if found is None else slip or found.describe(cells.grid)


def _judge(certificate: Certificate, proof: Proof, name: str) -> tuple[Verdict, list[str]]:
    """Compare what was proved with what is claimed; `name` is f's."""
    eps, p = certificate.eps, certificate.p
    assert eps is not None, "something is claimed"  # noqa: S101
    reasons: list[str] = []
    for claim, stated, found in _claimed(certificate, proof):
        if stated is not None and not stated.is_consistent():
            reasons.append(
                f"bound: the stated numbers ({claim}) do not follow from their terms"
            )
        if found is None:
            stopped = proof.obstacles_to(claim)
            reasons += [str(one) for one in stopped] or ["bound: none was found"]
        elif found > eps:
            cure = "a finer grid" if certificate.grid is not None else "more accuracy"
            reasons.append(
                f"bound: {found.format_value()} ({claim}) exceeds {format_decimal(eps)}; "
                f"{cure}, or a larger eps, would help"
            )
    if "real" in certificate.claims and proof.lower > (power_up(eps, p) if p else eps):
        low = root_in_words(proof.lower, p, eps)
        distance = certificate.distance(name)
        why = f"{distance} is at least {low}, above {format_decimal(eps)}"
        return Verdict.REFUTED, [why, *reasons]
    return Verdict.UNKNOWN if reasons else Verdict.PROVED, reasons


def _claimed(
    certificate: Certificate, proof: Proof
) -> Iterator[tuple[Claim, Bound | None, Bound | None]]:
    """Every claim, with the bound that the file states and the one that was found."""
    pairs = {
        "real": (certificate.bound, proof.real),
        "float64": (certificate.float64_bound, proof.float64),
    }
    for claim in certificate.claims:
        yield claim, *pairs[claim]


def _compared(certificate: Certificate, proof: Proof) -> Iterator[str]:
    """Where the bound found differs from the one that the file states."""
    assert certificate.eps is not None, "something is claimed"  # noqa: S101
    for claim, stated, found in _claimed(certificate, proof):
        if found is None or stated is None or found > certificate.eps:
            continue
        if stated.value != found.value:
            side = "larger" if found > stated.value else "smaller"
            yield (
                f"the bound found ({claim}) is {side} than the stated "
                f"{stated.format_value()}"
            )


def root_in_words(power: Fraction, p: Fraction | None, above: Fraction) -> str:
    """A number that is not above power^(1/p), in decimal; a power of two if it is huge.

    Where four digits do not tell it from `above`, which it exceeds, it has more.

    Example:
        >>> root_in_words(Fraction(1, 3), None, Fraction(1, 10))
        '0.333'
        >>> root_in_words(Fraction(10001, 100000), None, Fraction(1, 10))
        '0.1000099999'
    """
    bits = power.numerator.bit_length() - power.denominator.bit_length()
    if abs(bits) < 1000:
        root = float(power) ** (1 / float(p or 1))
        short = f"{root * 0.999:.4g}"
        return short if Fraction(short) > above else f"{root * (1 - 1e-9):.10g}"
    return f"2^{math.floor((bits - 1) / (p or 1))}"
