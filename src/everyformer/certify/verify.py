"""Check a certificate against its weights, and, where the function itself is given, f.

From the files alone it is `from_files.verify_files` that gives the verdict. Whoever has f
need not take the file's word for it: its expression is traced anew, or its declarations are
tried and its values computed anew.
"""

import os
from fractions import Fraction
from functools import partial

import numpy as np

from everyformer.certify.certificate import Certificate, Statement
from everyformer.certify.from_files import (
    REGION_NEEDS_EXPRESSION,
    verify_files,
)
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.modulus import half_cell, step_length, step_sizes
from everyformer.certify.proof import Computing
from everyformer.certify.prove import cells_of
from everyformer.certify.verification import Verification
from everyformer.certify.weights import Weights
from everyformer.certify.work import MAX_WORK, Limits
from everyformer.errors import CertificateError
from everyformer.files.names import NETWORK_FILE as NETWORK_FILE
from everyformer.files.network_file import MAX_MEMORY
from everyformer.targets.declarations import check_declarations
from everyformer.targets.region import Region
from everyformer.targets.support import check_support
from everyformer.targets.target import Target


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
    return verify_files(
        folder,
        computing,
        restate=None if target is None else partial(_derived_again, target),
        balls=balls,
        max_work=max_work,
        max_memory=max_memory,
    )


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


def _derived_again(
    target: Target, certificate: Certificate, weights: Weights, limits: Limits
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
