"""The bound on d_p(f, g), from given weights and what is known of f.

A network is proved cell by cell, or, if it was compiled, on the whole box at once.
"""

from fractions import Fraction

from everyformer.certify.compile.claims import Claimed
from everyformer.certify.compile.prove import prove_program
from everyformer.certify.forms import form_of
from everyformer.certify.hypotheses import BOTH
from everyformer.certify.known import Known
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.program_size import ProgramSize
from everyformer.certify.proof import Computing, Proof, Work
from everyformer.certify.undecided import Obstacle
from everyformer.certify.weights import Weights
from everyformer.certify.work import (
    Examined,
    Limits,
    check_cells,
    check_program,
    check_work,
)
from everyformer.errors import CertificateError
from everyformer.numerics.conditions import compared_by_terms
from everyformer.numerics.expression import Expression
from everyformer.numerics.symmetry import is_equivariant
from everyformer.targets.box import Box, Grid
from everyformer.targets.region import Region

MAX_REPRESENTATIVES = 2**24


ONLY_ON_THE_BOX = Proof(
    obstacles=(
        Obstacle(
            BOTH,
            "domain",
            "such a network is proved on a whole box: neither over a region nor over all "
            "of R^(n x d)",
            own=True,
        ),
    )
)


def cells_of(
    weights: Weights,
    box: Box,
    cells: int,
    known: Expression | None,
    *,
    equivariant: bool,
    limits: Limits = Limits(),  # noqa: B008
    region: Region | None = None,
    everywhere: bool = False,
) -> Cells:
    """The cells to examine.

    Orbits instead of cells, where network and function are equivariant: the network because
    it has neither positions nor a gain, f because its expression says so or, without one,
    by declaration. Over a region its pieces, whatever the symmetry.

    Raises:
        WorkLimitError: If there are too many, or examining them would take too long.
        TargetError: If the region is not inside the box.
    """
    grid = Grid(cells, weights.seq_len, box)
    size = None if known is None else ProgramSize.of(compared_by_terms(known))
    check_work(Examined.of(weights, grid, 1, size), limits)
    form = form_of(weights)
    grid = form.examined(grid, traced=known is not None)
    symmetric = form.symmetric and region is None
    if symmetric:
        symmetric = equivariant if known is None else is_equivariant(known)
    if region is not None:
        region.check_inside(box)
    count = check_cells(grid, symmetric=symmetric, most=MAX_REPRESENTATIVES, region=region)
    check_work(Examined.of(weights, grid, count, size), limits)
    return Cells.of(grid, symmetric=symmetric, region=region, everywhere=everywhere)


def prove(
    weights: Weights,
    cells: Cells,
    known: Known,
    p: Fraction | None,
    computing: Computing = Computing(),  # noqa: B008
    *,
    balls: bool = False,
    purpose: str = "construct",
    grid: Grid | None = None,
) -> Proof:
    """Bound d_p(f, g) from the weights, in the form that they are of.

    Args:
        weights: The network.
        cells: The cells to examine.
        known: What is known of f.
        p: The exponent; None for the supremum, which networks with prefix tokens have.
        computing: Where shards run.
        balls: Enclose f in Arb balls on every cell, instead of float64 intervals first.
        purpose: Part of the name of kept shards: a verifier reads none that a builder left.
        grid: That of the domain, where `cells` may be others.

    Raises:
        CertificateError: If shards cannot be run.
    """
    work = Work(computing, balls, purpose)
    form = form_of(weights)
    if (cells.region is not None or cells.everywhere) and not form.by_cells:
        return ONLY_ON_THE_BOX
    return form.prove(grid or cells.grid, cells, known, p, work)


def prove_everywhere(
    weights: Weights,
    box: Box,
    f: Expression | None,
    p: Fraction | None,
    limits: Limits = Limits(),  # noqa: B008
    *,
    on_box: bool = True,
) -> Proof:
    """Bound d_p(f, g) of a network that computes f's own program, step by step.

    Args:
        weights: The network.
        box: The domain of a token.
        f: The function; None if it has no expression.
        p: The exponent; None for the supremum.
        limits: What it may cost.
        on_box: Whether the distance is over the box, and over nothing else.

    Raises:
        WorkLimitError: If it would cost more.
        CertificateError: If f is for another network, or not given.
    """
    if not on_box:
        return ONLY_ON_THE_BOX
    if f is None:
        msg = (
            "The certificate has no grid: such a network is proved of an expression alone."
        )
        raise CertificateError(msg)
    check_sizes(f, weights.seq_len, weights.d_model)
    check_program(weights, f, Claimed.of(weights.program), limits)
    return prove_program(weights, box, f, p)


def check_sizes(f: Expression, seq_len: int, d_model: int) -> Expression:
    """f, if it is for sequences of that size.

    Raises:
        CertificateError: If it is not.
    """
    if (f.seq_len, f.d_model) != (seq_len, d_model):
        msg = (
            f"The expression has n, d = {(f.seq_len, f.d_model)}, the network "
            f"{(seq_len, d_model)}. They do not belong together."
        )
        raise CertificateError(msg)
    return f
