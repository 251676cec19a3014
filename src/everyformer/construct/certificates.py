"""Certificates for networks that were just built: the verifier's proof, written down."""

import tempfile
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from everyformer.certify.certificate import (
    LARGEST,
    SMALLEST,
    Certificate,
    Statement,
    current_versions,
)
from everyformer.certify.from_files import known_of
from everyformer.certify.hypotheses import BOTH, Claim
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.modulus import contradiction
from everyformer.certify.proof import Computing, Proof
from everyformer.certify.prove import cells_of, prove, prove_everywhere
from everyformer.certify.undecided import Obstacle
from everyformer.certify.verify import declare
from everyformer.certify.weights import Weights, read_weights
from everyformer.errors import TargetError
from everyformer.files.names import NETWORK_FILE
from everyformer.model.network import Network
from everyformer.targets.box import Grid
from everyformer.targets.declarations import check_declarations
from everyformer.targets.support import check_support
from everyformer.targets.target import Target

SAMPLES = 4096


def certify(
    network: Network,
    target: Target,
    grid: int | None,
    p: Fraction | None,
    eps: Fraction | None = None,
    computing: Computing = Computing(),  # noqa: B008
) -> Certificate:
    """Prove a bound on d_p(f, g) from the weights, as they would be stored.

    Args:
        network: The network.
        target: f.
        grid: K, cells per axis; None for a compiled network.
        p: The exponent; None for the supremum.
        eps: The distance to claim; by default the bound that is found, rounded up.
        computing: Where the work runs.

    Returns:
        A certificate: PROVED, or UNKNOWN with what is missing and a measured distance.

    Raises:
        TargetError: If f's own values contradict what is declared of it.
    """
    weights = as_stored(network)
    statement, cells = Statement(target.name, expression=target.expression), None
    if grid is not None:
        statement, cells = _known(weights, target, grid)
    unproved = Certificate(
        eps=eps,
        p=p,
        claims=(),
        seq_len=weights.seq_len,
        d_model=weights.d_model,
        box=target.domain,
        grid=grid,
        weights_sha256=weights.sha256,
        dtype="rational" if weights.exact else "float64",
        blocks=weights.blocks,
        statement=statement,
        bound=None,
        float64_bound=None,
        versions=current_versions(),
        region=target.region,
        everywhere=target.everywhere,
    )
    if grid is None:
        f, on_box = target.expression, unproved.on_box
        proof = prove_everywhere(weights, target.domain, f, p, on_box=on_box)
    elif cells is None:
        why = f"no modulus is declared, and no trace: {target.untraceable}"
        if target.region is not None:
            why = f"over a region f must have a trace: {target.untraceable}"
        stopped = Obstacle(BOTH, "target", why, own=True)
        sampled = distance_sampled(network, target, float(p or np.inf))
        return replace(unproved, eps=None, obstacles=(stopped,), distance_sampled=sampled)
    else:
        whole = Grid(grid, weights.seq_len, target.domain)
        known = known_of(statement, cells)
        proof = prove(weights, cells, known, p, computing, grid=whole)
    proof = _claimable(proof)
    claims: list[Claim] = []
    if proof.real is not None:
        claims.append("real")
    if proof.float64 is not None:
        claims.append("float64")
    found = [bound for bound in (proof.real, proof.float64) if bound is not None]
    if found and eps is None:
        eps = max(Fraction(bound.format_value()) for bound in found)
        eps = max(eps, SMALLEST) if eps else eps
    sampled = None
    if not found:
        sampled = distance_sampled(network, target, float(p or np.inf))
    return replace(
        unproved,
        eps=eps if found else None,
        claims=tuple(claims),
        bound=proof.real,
        float64_bound=proof.float64,
        obstacles=proof.obstacles,
        hypotheses=proof.hypotheses,
        cells=proof.summary,
        distance_sampled=sampled,
    )


def _claimable(proof: Proof) -> Proof:
    """Without bounds so large that no certificate may claim them."""
    found = [bound for bound in (proof.real, proof.float64) if bound is not None]
    if all(bound <= LARGEST for bound in found):
        return proof
    why = (
        "the bound on the distance is above 2^1000, the largest that a certificate claims: "
        "use a smaller domain, or p = infinity"
    )
    return replace(
        proof, real=None, float64=None, obstacles=(Obstacle(BOTH, "domain", why, own=True),)
    )


def as_stored(network: Network) -> Weights:
    """The weights, read from a file as anybody would read them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / NETWORK_FILE
        network.save(path)
        return read_weights(path)


def _known(weights: Weights, target: Target, grid: int) -> tuple[Statement, Cells | None]:
    """What is known of f, and the cells it is known on; no cells, if nothing is."""
    declared = target.lipschitz is not None or target.modulus is not None
    if target.everywhere:
        check_support(target)
    if target.expression is None and (not declared or target.region is not None):
        return Statement(target.name), None
    cells = cells_of(
        weights,
        target.domain,
        grid,
        target.expression,
        equivariant=target.equivariant,
        region=target.region,
        everywhere=target.everywhere,
    )
    if target.expression is not None:
        return Statement(target.name, expression=target.expression), cells
    statement = declare(target, cells)
    assert statement.values is not None, "declare gives values"  # noqa: S101
    false = contradiction(cells, statement.values, statement.steps)
    if false is not None:
        msg = (
            f"{target.name} declares {statement.declaration}, which is false: "
            f"{false.describe(cells.grid)}. Correct the declaration."
        )
        raise TargetError(msg)
    check_declarations(target, grid)
    return statement, cells


def distance_sampled(
    network: Network, target: Target, p: float, points: int = SAMPLES
) -> float:
    """d_p(f, g) at random points: a measurement, and no bound; inf beyond float64."""
    rng = np.random.default_rng(0)
    low, high = np.asarray(target.domain.lows), np.asarray(target.domain.highs)
    volume = target.domain.volume(target.seq_len)
    if target.region is None:
        cube = rng.random((points, target.seq_len, target.d_model))
        x = low + (high - low) * cube
    else:
        x, volume = target.region.sample(rng, points), target.region.volume
    with np.errstate(over="ignore"):
        gap = np.abs(target(x) - network(x))
    largest = float(gap.max())
    if p == np.inf or largest == 0 or not np.isfinite(largest):
        return largest
    mean = float(((gap / largest) ** p).sum(axis=(1, 2)).mean())
    bits = volume.numerator.bit_length() - volume.denominator.bit_length()
    share = float(volume / Fraction(2) ** bits)
    size = np.log2(largest) + (np.log2(mean * share) + bits) / p
    return float(np.exp2(size)) if size < np.finfo(np.float64).maxexp else np.inf
