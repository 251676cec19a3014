"""From a function and a tolerance to a network with its certificate.

With a pattern attention is sparse, as Yun et al. 2020b have it (construct/sparse.py).
With attention="urpe" its positions come from a layer, as Luo et al. 2022 have it. With
method="averaging" one attention layer does the work of all selective shifts; with
method="partition" two do it with prefix tokens, and the error is of second order.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path

from everyformer.certify.certificate import Certificate
from everyformer.certify.prove import Computing
from everyformer.certify.verify import NETWORK_FILE
from everyformer.construct.assembly import build_network, tabulate
from everyformer.construct.averaging import (
    Variant,
)
from everyformer.construct.budget import (
    check_tolerance,
    describe_bounds,
    grid_for_tolerance,
)
from everyformer.construct.certificates import Knowledge, certify, check_knowledge
from everyformer.construct.comparison import Comparison, compare
from everyformer.construct.partition_plan import PartitionPlan
from everyformer.construct.plan import DEFAULT_MAX_MEMORY, Plan, check_feasible
from everyformer.construct.planning import Method, exponent_of, make_any_plan
from everyformer.construct.sparse_constants import SparseVariant
from everyformer.construct.table import Table
from everyformer.errors import GridError, ToleranceError
from everyformer.model.architecture import AttentionKind
from everyformer.model.cost import Cost, count
from everyformer.model.forward import Progress, no_progress
from everyformer.model.network import Network
from everyformer.numerics.limits import check_limit
from everyformer.papers import YUN2020, implements
from everyformer.patterns.pattern import Pattern
from everyformer.targets.target import Target
from everyformer.verdict import Verdict


@dataclass(frozen=True)
class Built:
    """A constructed network and what is known about it.

    Attributes:
        network: The Transformer.
        target: The function it approximates.
        plan: What was planned.
        cost: What it costs, counted from the weights.
        table: The piecewise constant function it computes; or f at its anchors.
        p: The exponent of d_p; None for the supremum.
        proved: The certificate that chose the grid, if a tolerance was given.
        comparison: The methods it was chosen from, with method="auto".
    """

    network: Network
    target: Target
    plan: Plan
    cost: Cost
    table: Table
    p: Fraction | None
    proved: Certificate | None = None
    comparison: Comparison | None = None

    @cached_property
    def certificate(self) -> Certificate:
        """What is proved of d_p(f, g); made when first asked for."""
        return self.proved or self.certify()

    def certify(
        self,
        *,
        knowledge: Knowledge = "auto",
        eps: Fraction | None = None,
        computing: Computing = Computing(),  # noqa: B008
    ) -> Certificate:
        """Prove a bound on d_p(f, g) from the weights.

        Args:
            knowledge: f by its expression, by its declared modulus, or whichever there is.
            eps: The distance to claim; by default the bound found, rounded up.
            computing: Where the work runs.
        """
        return certify(
            self.network,
            self.target,
            grid=self.plan.grid,
            p=self.p,
            eps=eps,
            knowledge=_known_to(self.plan, knowledge),
            computing=computing,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the weights and the certificate to a folder, for `verify`."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        self.network.save(place / NETWORK_FILE)
        self.certificate.save(place)


@implements(YUN2020, "Theorem 2", "Theorem 3")
def construct(
    target: Target,
    *,
    grid: int | None = None,
    tol: int | float | None = None,
    p: int | float | Fraction = 2,
    softened: bool = True,
    positional: bool | None = None,
    spacing: int | None = None,
    attention: AttentionKind = "dense",
    method: Method = "selective-shift",
    variant: Variant | SparseVariant = "wide",
    pattern: Pattern | None = None,
    gamma: Sequence[int] | None = None,
    decay: int | float | Fraction | None = None,
    margin: int | None = None,
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    knowledge: Knowledge = "auto",
    computing: Computing = Computing(),  # noqa: B008
    progress: Progress = no_progress,
) -> Built:
    """Build a Transformer that computes a function.

    Args:
        target: The function.
        grid: K, cells per axis; or
        tol: the distance d_p(f, g) allowed. The coarsest dyadic grid is taken whose
            certified bound meets it; of method="partition" the fewest anchors.
        p: The exponent of d_p; math.inf, the supremum, with method="partition".
        softened: The real network in T^{2,1,4} (softmax, four ReLUs, float64), or the
            modified one (hardmax, Phi, exact rationals).
        positional: Theorem 3 (with positions) instead of Theorem 2. By default only if the
            target is not equivariant, or if Theorem 2 cannot meet the tolerance.
        spacing: Distance of positions in units of delta; K gives the paper's E.
        attention: "dense", the classes T and T_P of Yun et al. 2020; or "urpe", the class
            Omega_U of Luo et al. 2022: no E, one attention layer makes the positions.
        method: "selective-shift", the construction of Yun et al. 2020; or "averaging", with
            a single attention layer, a plain mean (docs/constructions/averaging.md); or
            "partition", softmax over anchors (docs/constructions/partition.md); or "auto":
            with tol, all that apply are planned, and the one with the fewest parameters
            that meets it is built.
        variant: Of averaging attention: "wide" (two or three blocks with many hidden
            units), "narrow" (two hidden units a block), "two-step" (wide, and digits in
            two steps, for narrow ramps). With a pattern: "wide" or "sweep".
        pattern: A family of sparse attention patterns (`everyformer.patterns`) that
            satisfies Assumption 1: the network is in ST^{2,1,4} of Yun et al. 2020b.
        gamma: With a pattern: a Hamiltonian path, 0-based; by default one is looked for.
        decay: Of method="partition": D, weights fall as e^(-D r^2) at r steps of the grid.
        margin: Of method="partition": m, steps of the grid beyond the domain.
        max_memory: Bytes that building may need.
        knowledge: With tol: f by its expression, by its declared modulus, or whichever
            there is.
        computing: Where certificates are computed.
        progress: Called as progress(what, done, total).

    Raises:
        EveryformerError: If the target, the grid, the tolerance or the attention cannot
            work.
    """
    check_limit("max_memory", max_memory, "bytes")
    exponent = exponent_of(p, method)
    if (grid is None) == (tol is None):
        msg = f"Give either grid or tol; got grid={grid!r} and tol={tol!r}."
        raise GridError(msg)
    if tol is not None:
        check_tolerance(target, tol)
    check_knowledge(target, knowledge)
    if method == "auto" and tol is not None:
        _check_open(softened, spacing, variant, decay, margin)
        found = compare(
            target,
            tol,
            p=p,
            positional=positional,
            attention=attention,
            pattern=pattern,
            gamma=gamma,
            max_memory=max_memory,
            knowledge=knowledge,
            workers=computing.workers,
            progress=progress,
        )
        return build_cheapest(target, found, max_memory, knowledge, computing, progress)

    def planned(cells: int | None, with_positions: bool | None) -> Plan:
        return make_any_plan(
            target,
            cells,
            p=exponent,
            softened=softened,
            positional=with_positions,
            spacing=spacing,
            attention=attention,
            method=method,
            variant=variant,
            pattern=pattern,
            gamma=gamma,
            tol=tol if method == "partition" else None,
            decay=decay,
            margin=margin,
            knowledge=knowledge,
        )

    def build(plan: Plan) -> tuple[Table, Network]:
        table = tabulate(plan, target, progress)
        return table, build_network(plan, table, progress)

    def prove(network: Network, plan: Plan) -> Certificate:
        return certify(
            network,
            target,
            grid=plan.grid,
            p=exponent,
            eps=Fraction(str(tol)),  # 0.1 means a tenth
            knowledge=_known_to(plan, knowledge),
            computing=computing,
        )

    if tol is not None and method == "partition":
        plan = planned(None, positional)  # its bound is proved before it is built
        check_feasible(plan, max_memory)
        table, network = build(plan)
        proved = check_proved(prove(network, plan), target.name)
        return Built(network, target, plan, count(network), table, exponent, proved)
    if tol is not None:
        plan, table, network, proved = grid_for_tolerance(
            target,
            tol,
            planned,
            build,
            prove,
            choices=_choices(target, positional, attention, method)
            if pattern is None
            else (positional,),
            max_memory=max_memory,
        )
        return Built(network, target, plan, count(network), table, exponent, proved)
    assert grid is not None, "either grid or tol is given"  # noqa: S101
    plan = planned(grid, positional)
    check_feasible(plan, max_memory)
    table, network = build(plan)
    return Built(network, target, plan, count(network), table, exponent)


def build_cheapest(
    target: Target,
    found: Comparison,
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    knowledge: Knowledge = "auto",
    computing: Computing = Computing(),  # noqa: B008
    progress: Progress = no_progress,
) -> Built:
    """The network with the fewest parameters whose certificate meets the tolerance.

    A plan holds in real arithmetic. Where rounding adds too much, the next one is built.

    Raises:
        ToleranceError: If none meets it.
    """
    failures = found.remarks()
    for candidate, point in found.by_cost():
        built = construct(
            target,
            p=math.inf if found.p is None else found.p,
            max_memory=max_memory,
            progress=progress,
            **candidate.arguments(),
        )
        proved = built.certify(
            knowledge=_known_to(point.plan, knowledge), eps=found.tol, computing=computing
        )
        if proved.verdict is Verdict.PROVED:
            return replace(built, proved=proved, comparison=found)
        failures.append(f"{candidate.settings.name}: {describe_bounds(proved)}")
    msg = (
        f"No method brings d_p({target.name}, g) to tol={float(found.tol):g}. "
        f"{'; '.join(failures)} Raise tol, or allow more memory."
    )
    raise ToleranceError(msg)


def _check_open(
    softened: bool,
    spacing: int | None,
    variant: str,
    decay: int | float | Fraction | None,
    margin: int | None,
) -> None:
    """Refuse to compare methods while fixing what only some of them have.

    Raises:
        GridError: Naming what was fixed.
    """
    fixed = {
        "softened": None if softened else False,
        "spacing": spacing,
        "variant": None if variant == "wide" else variant,
        "decay": decay,
        "margin": margin,
    }
    given = [f"{name}={value!r}" for name, value in fixed.items() if value is not None]
    if given:
        msg = (
            f"{', '.join(given)} with method='auto': that belongs to one method, and auto "
            "chooses between all. Leave it out, or name the method."
        )
        raise GridError(msg)


def _known_to(plan: Plan, knowledge: Knowledge) -> Knowledge:
    """How f is known; as it is to the bound of the plan, where that chose."""
    if knowledge == "auto" and isinstance(plan, PartitionPlan):
        return plan.knowledge
    return knowledge


def check_proved(certificate: Certificate, target: str) -> Certificate:
    """The certificate of a network whose plan meets a tolerance.

    Raises:
        ToleranceError: If the network's own bound does not.
    """
    if certificate.verdict is Verdict.PROVED:
        return certificate
    msg = (
        f"The network that was planned for {target} is not proved to meet the tolerance: "
        f"{certificate}. Use a smaller tolerance, or choose the lattice (grid=...)."
    )
    raise ToleranceError(msg)


def _choices(
    target: Target, positional: bool | None, attention: AttentionKind, method: Method
) -> tuple[bool | None, ...]:
    """With positions or without, in the order in which a tolerance tries them.

    An equivariant target gets none, unless they are asked for. Theorem 2 gives up the cells
    with equal columns; where no grid within float64 makes them few enough, and `positional`
    leaves the choice, Theorem 3 is taken instead. URPE always has positions. Averaging
    attention without positions gives up nothing, but its codes end sooner in float64.
    """
    open_choice = positional is None and (attention == "dense" or method == "averaging")
    if open_choice and target.equivariant and target.seq_len > 1:
        return (False, True)
    return (positional,)
