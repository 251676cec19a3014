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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.cells import Cells
from everyformer.certify.certificate import (
    Certificate,
    Statement,
    format_decimal,
)
from everyformer.certify.certificate_file import read_certificate
from everyformer.certify.hypotheses import Claim, Hypothesis, conditions, headline
from everyformer.certify.known import Declared
from everyformer.certify.modulus import (
    contradiction,
    half_cell,
    step_length,
    step_sizes,
)
from everyformer.certify.presentation import listing
from everyformer.certify.proof import Computing, Proof
from everyformer.certify.prove import cells_of, check_sizes, prove, prove_everywhere
from everyformer.certify.undecided import quoted
from everyformer.certify.weights import Weights, read_weights
from everyformer.certify.work import MAX_WORK, Limits, check_files
from everyformer.errors import CertificateError
from everyformer.files.network_file import MAX_MEMORY
from everyformer.notebook import html_lines, short
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Grid
from everyformer.targets.declarations import check_declarations
from everyformer.targets.region import Region
from everyformer.targets.support import check_support
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

REGION_NEEDS_EXPRESSION = (
    "The distance is over a region, and f is known by a declaration, which is about the "
    "whole box. Make f traceable, or leave the region out."
)
NETWORK_FILE = "network.safetensors"
EXIT_CODES = {Verdict.PROVED: 0, Verdict.REFUTED: 1, Verdict.UNKNOWN: 3}
"""2 is for wrong usage, broken files and everything else that is not a verdict."""


@dataclass(frozen=True)
class Verification:
    """The verdict on a certificate.

    Attributes:
        verdict: PROVED, REFUTED or UNKNOWN.
        reasons: Why, the stage first where there is one.
        remarks: What else was seen.
        proof: What was proved, and what that rests on.
        certificate: What the file says. Its claim is judged; nothing else of it counts.
        statement: What was used of f: the file's, or that of the target given.
        given: Whether a target was given. Else f's name is a word of the file.
        contradicted: What is declared of f is contradicted by its own values.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]
    proof: Proof
    certificate: Certificate
    statement: Statement
    given: bool = False
    contradicted: bool = False

    @property
    def bound(self) -> Bound | None:
        """The bound that was found, in real arithmetic."""
        return self.proof.real

    @property
    def float64_bound(self) -> Bound | None:
        """The bound that was found for float64 runs."""
        return self.proof.float64

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """What the bounds found rest on."""
        return self.proof.hypotheses

    def to_json(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        bounds = {"bound": self.bound, "float64_bound": self.float64_bound}
        declared = conditions(self.hypotheses)
        return {
            "verdict": str(self.verdict),
            "conditional_on": list(declared),
            "headline": self.headline,
            "claim": self.certificate.claim_json(conditional=bool(declared)),
            "f": {
                "name": self.statement.name if self.given else None,
                "name_in_file": self.certificate.statement.name,
                "known_by": self.statement.kind,
                "from": "target" if self.given else "file",
            },
            "reasons": list(self.reasons),
            "remarks": list(self.remarks),
            **{
                name: None if bound is None else bound.to_json()
                for name, bound in bounds.items()
            },
            "hypotheses": [hypothesis.to_json() for hypothesis in self.hypotheses],
        }

    @property
    def headline(self) -> str:
        """The verdict and the claim, with all that was declared of f."""
        claim = self.certificate.claim(self._name)
        if self.contradicted:
            declared = self.statement.declaration
            claim = f"the declared {declared}, on which the claim rests: {claim}"
        undecided = self.verdict is Verdict.UNKNOWN
        return headline(self.verdict.name, claim, () if undecided else self.hypotheses)

    @property
    def _name(self) -> str:
        return self.statement.name if self.given else "f"

    def describe(self, *, verbose: bool = False) -> str:
        """The verdict, the reasons, what f is, the bounds found and what they assume.

        Args:
            verbose: Show all terms; otherwise tiny ones are folded into one line.
        """
        before, after = self._remarks()
        bounds = listing(self.bound, self.float64_bound, verbose=verbose)
        return "\n".join([self.headline, *before, *bounds.lines(), *after])

    def __str__(self) -> str:
        """The same, with tiny terms folded."""
        return self.describe()

    def _remarks(self) -> tuple[list[str], list[str]]:
        """What is said before the bounds, and after them."""
        before = [f"because {reason}" for reason in self.reasons]
        before.append(describe_f(self.certificate, self.statement, given=self.given))
        after = [f"assumes: {hypothesis}" for hypothesis in self.hypotheses]
        return before, after + [f"note: {remark}" for remark in self.remarks]

    def __repr__(self) -> str:
        """One line; `print` shows the bounds."""
        return f"Verification({short(self.headline, 160)})"

    def _repr_html_(self) -> str:
        """The bounds as a table, for notebooks."""
        before, after = self._remarks()
        bounds = listing(self.bound, self.float64_bound).html(self.headline)
        return bounds + html_lines([*before, *after])


def describe_f(certificate: Certificate, statement: Statement, *, given: bool) -> str:
    """Which function the verdict is about, and on which domain."""
    ways = {
        "expression": ("the expression in the file", "as traced"),
        "modulus": (
            "any function with the values and the modulus in the file",
            "by its values and its declaration",
        ),
        "nothing": ("a function that is not in the file", "of which nothing is known"),
    }
    of_file, of_target = ways[statement.kind]
    if given:
        what = f"f is {statement.name}, {of_target}"
    else:
        what = f"f is {of_file}, called {quoted(statement.name)} by the file"
    n, d = certificate.seq_len, certificate.d_model
    tokens = f"{n} token{'s' * (n > 1)} of {d} number{'s' * (d > 1)}"
    where = "" if certificate.region is None else f", of it {certificate.region.describe()}"
    if certificate.everywhere:
        where = ", and f = 0 outside it"
    return f"where {what}; {tokens} in {certificate.box}{where}"


def verify(
    folder: str | os.PathLike[str],
    target: Target | None = None,
    computing: Computing = Computing(),  # noqa: B008
    *,
    balls: bool = False,
    max_work: int | float = MAX_WORK,
    max_memory: int | float = MAX_MEMORY,
) -> Verification:
    """Check the certificate in a folder against the weights beside it.

    Args:
        folder: Holds certificate.json and network.safetensors.
        target: The function itself: what the certificate says of it is derived again.
        computing: Where the work runs.
        balls: Enclose f in Arb balls on every cell, instead of float64 intervals first.
        max_work: Seconds on one core that it may take, by an estimate made first.
        max_memory: Bytes that it may need, by that estimate; also the size of a file.

    Raises:
        CertificateError: If a file is damaged, or a hash does not match: no verdict.
        WorkLimitError: If more work or memory would be needed: no verdict either.
        FileNotFoundError: If a file is missing.
        TargetError: If the target given contradicts what it declares of itself.
        InputError: If a limit is not a positive number.
    """
    place, limits = Path(folder), Limits(max_work, max_memory)
    check_files(place, limits)
    certificate = read_certificate(place)
    weights = read_weights(place / NETWORK_FILE, max_memory)
    _check_same(certificate, weights, place)
    statement, remarks = certificate.statement, list[str]()
    if target is not None:
        statement, remarks = _derived_again(certificate, target, weights, limits)

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
            target is not None,
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
        cells = cells_of(
            weights,
            box,
            certificate.grid,
            statement.expression,
            equivariant=statement.equivariant,
            limits=limits,
            region=certificate.region,
            everywhere=certificate.everywhere,
        )
        known = known_of(statement, cells)
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
    name = "f" if target is None else target.name
    verdict, reasons = _judge(certificate, proof, name)
    remarks += _compared(certificate, proof)
    return found(verdict, reasons, proof)


def _check_same(certificate: Certificate, weights: Weights, place: Path) -> None:
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


def declare(target: Target, cells: Cells) -> Statement:
    """What a target declares of itself, with its values at the centres.

    Raises:
        TargetError: If the target fails.
        CertificateError: If nothing is declared.
    """
    grid = cells.grid
    omega = target.modulus_of_continuity(half_cell(grid))
    if omega is None:
        msg = f"{target.name} declares neither lipschitz nor modulus. Declare one of them."
        raise CertificateError(msg)
    steps: dict[int, Fraction] = {}
    for k in step_sizes(grid):
        allowed = target.modulus_of_continuity(step_length(grid, k))
        assert allowed is not None, "declared, as above"  # noqa: S101
        steps[k] = allowed
    values = target(grid.centres(cells.rows(0, cells.count)))
    return Statement(
        target.name,
        omega=omega,
        lipschitz=target.lipschitz,
        steps=steps,
        equivariant=cells.columns is not None,
        values=values,
    )


def _false_declaration(statement: Statement, cells: Cells, known: Declared) -> str | None:
    """Two cells that contradict the declared modulus, in words."""
    allowed = dict(statement.steps)
    if statement.lipschitz is not None:
        L, grid = statement.lipschitz, cells.grid
        allowed = {k: L * step_length(grid, k) for k in step_sizes(grid)}
        half = half_cell(grid)
        if statement.omega != L * half:
            return f"omega is stated as {statement.omega}, but {L} times {half} is not that"
    # Neighbouring cells meet in a point half a cell from either centre.
    twice = 2 * known.omega
    allowed[1] = min(allowed.get(1, twice), twice)
    found = contradiction(cells, known.values, allowed)
    return None if found is None else found.describe(cells.grid)


def _derived_again(
    certificate: Certificate, target: Target, weights: Weights, limits: Limits
) -> tuple[Statement, list[str]]:
    """The statement about f, from the function itself.

    Raises:
        TargetError: If the function contradicts what it declares of itself.
        CertificateError: If it is not the one that the certificate is about.
    """
    stated = certificate.statement
    sizes = (target.seq_len, target.d_model, target.domain)
    if sizes != (certificate.seq_len, certificate.d_model, certificate.box):
        msg = (
            f"{target.name} has n = {target.seq_len}, d = {target.d_model} on "
            f"{target.domain}; the certificate is about n = {certificate.seq_len}, "
            f"d = {certificate.d_model} on {certificate.box}. Give the target it is about."
        )
        raise CertificateError(msg)
    over = [_over(one.region, one.everywhere) for one in (target, certificate)]
    if (target.region, target.everywhere) != (certificate.region, certificate.everywhere):
        msg = (
            f"Distances from {target.name} are over {over[0]}; the certificate is about "
            f"one over {over[1]}. Give the target it is about."
        )
        raise CertificateError(msg)
    if target.everywhere:
        check_support(target)
    if stated.expression is not None:
        if target.expression is None:
            msg = f"{target.name} has no expression: {target.untraceable}"
            raise CertificateError(msg)
        same = target.expression.sha256 == stated.expression.sha256
        text = "is that of" if same else "differs from that of"
        remark = (
            f"the expression in the certificate {text} {target.name}; the latter counts"
        )
        return Statement(target.name, expression=target.expression), [remark]
    if certificate.grid is None:
        msg = "The certificate has no grid on which a declared function is known."
        raise CertificateError(msg)
    check_declarations(target, certificate.grid)
    same = stated.equivariant and target.equivariant
    if certificate.region is not None:
        raise CertificateError(REGION_NEEDS_EXPRESSION)
    cells = cells_of(
        weights,
        certificate.box,
        certificate.grid,
        None,
        equivariant=same,
        limits=limits,
        everywhere=certificate.everywhere,
    )
    statement = declare(target, cells)
    assert statement.values is not None, "declare gives values"  # noqa: S101
    same = stated.values is not None and np.array_equal(statement.values, stated.values)
    text = "are those of" if same else "differ from those of"
    remark = f"the values in the certificate {text} {target.name}; the latter count"
    return statement, [remark]


def _over(region: Region | None, everywhere: bool) -> str:
    if everywhere:
        return "all of R^(n x d)"
    return "the box" if region is None else str(region)


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
        low = _root_in_words(proof.lower, p)
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


def _root_in_words(power: Fraction, p: Fraction | None) -> str:
    """A number that is not above power^(1/p), in decimal; a power of two if it is huge."""
    bits = power.numerator.bit_length() - power.denominator.bit_length()
    if abs(bits) < 1000:
        return f"{float(power) ** (1 / float(p or 1)) * 0.999:.4g}"
    return f"2^{math.floor((bits - 1) / (p or 1))}"
