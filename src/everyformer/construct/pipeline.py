"""The construction of Yun et al. 2020, from a function to a network, step by step.

With attention="urpe" its positions come from a layer, as Luo et al. 2022 have it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path

import numpy as np

from everyformer.certify.certificate import Certificate
from everyformer.certify.prove import Computing
from everyformer.certify.verify import NETWORK_FILE
from everyformer.construct.budget import check_exponent, grid_for_tolerance
from everyformer.construct.certificates import Knowledge, certify, check_knowledge
from everyformer.construct.constants import RAMP_WIDTH, Constants
from everyformer.construct.contextual import (
    contextual_ids,
    global_shift,
    lift,
    selective_shifts,
)
from everyformer.construct.plan import (
    DEFAULT_MAX_MEMORY,
    Plan,
    check_feasible,
    make_plan,
)
from everyformer.construct.position_layer import position_layer
from everyformer.construct.quantise import (
    out_of_range,
    positional_encoding,
    quantise,
    read_in,
)
from everyformer.construct.soften import soften
from everyformer.construct.step import Step
from everyformer.construct.table import Table, piecewise_constant
from everyformer.construct.value import (
    cap_ids,
    clamp,
    negative_to_zero,
    plan_values,
    push_down,
    value_map,
    written_values,
)
from everyformer.errors import GridError
from everyformer.model.architecture import AttentionKind
from everyformer.model.construction import Construction
from everyformer.model.cost import Cost, count
from everyformer.model.forward import Progress, no_progress
from everyformer.model.network import Network
from everyformer.numerics.kinds import EXACT, FLOAT64, NumberKind
from everyformer.papers import YUN2020, implements
from everyformer.targets.target import Target


@dataclass(frozen=True)
class Built:
    """A constructed network and what is known about it.

    Attributes:
        network: The Transformer.
        target: The function it approximates.
        plan: What was planned.
        cost: What it costs, counted from the weights.
        table: The piecewise constant function it computes.
        p: The exponent of d_p.
        proved: The certificate that chose the grid, if a tolerance was given.
    """

    network: Network
    target: Target
    plan: Plan
    cost: Cost
    table: Table
    p: Fraction
    proved: Certificate | None = None

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
            knowledge=knowledge,
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
    max_memory: int = DEFAULT_MAX_MEMORY,
    knowledge: Knowledge = "auto",
    computing: Computing = Computing(),  # noqa: B008
    progress: Progress = no_progress,
) -> Built:
    """Build a Transformer that computes a function.

    Args:
        target: The function.
        grid: K, cells per axis; or
        tol: the distance d_p(f, g) allowed. The coarsest dyadic grid is taken whose
            certified bound meets it.
        p: The exponent of d_p.
        softened: The real network in T^{2,1,4} (softmax, four ReLUs, float64), or the
            modified one (hardmax, Phi, exact rationals).
        positional: Theorem 3 (with positions) instead of Theorem 2. By default only if the
            target is not equivariant, or if Theorem 2 cannot meet the tolerance.
        spacing: Distance of positions in units of delta; K gives the paper's E.
        attention: "dense", the classes T and T_P of Yun et al. 2020; or "urpe", the class
            Omega_U of Luo et al. 2022: no E, one attention layer makes the positions.
        max_memory: Bytes that building may need.
        knowledge: With tol: f by its expression, by its declared modulus, or whichever
            there is.
        computing: Where certificates are computed.
        progress: Called as progress(what, done, total).

    Raises:
        EveryformerError: If the target, the grid, the tolerance or the attention cannot
            work.
    """
    exponent = check_exponent(p)
    if (grid is None) == (tol is None):
        msg = f"Give either grid or tol; got grid={grid!r} and tol={tol!r}."
        raise GridError(msg)
    check_knowledge(target, knowledge)
    if tol is not None:
        allowed = tol

        def prove(network: Network, plan: Plan) -> Certificate:
            return certify(
                network,
                target,
                grid=plan.grid,
                p=exponent,
                eps=Fraction(str(allowed)),  # 0.1 means a tenth
                knowledge=knowledge,
                computing=computing,
            )

        plan, table, network, proved = grid_for_tolerance(
            target,
            tol,
            lambda plan, table: build_network(plan, table, progress),
            prove,
            softened=softened,
            positional=positional,
            attention=attention,
            max_memory=max_memory,
            progress=progress,
        )
        return Built(network, target, plan, count(network), table, exponent, proved)
    assert grid is not None, "either grid or tol is given"  # noqa: S101
    plan = make_plan(
        target,
        grid,
        softened=softened,
        positional=positional,
        spacing=spacing,
        attention=attention,
    )
    check_feasible(plan, max_memory)
    table = piecewise_constant(plan.constants, target, progress)
    network = build_network(plan, table, progress)
    return Built(network, target, plan, count(network), table, exponent)


def build_network(plan: Plan, table: Table, progress: Progress = no_progress) -> Network:
    """The network of a plan that computes a table (Lemma 8 is behind us)."""
    c = plan.constants
    kind = FLOAT64 if c.softened else EXACT
    ids = contextual_ids(c, table.columns)
    stages = []
    for step in proof_steps(c, kind, table, ids):
        progress(f"build: {step.stage.name}", len(stages), len(plan.stages))
        stages.append(soften(step, c.sharpness) if c.softened else step.stage)
    return Network(
        architecture=plan.architecture,
        stages=tuple(stages),
        positions=positional_encoding(c, kind) if plan.architecture.positional else None,
        construction=_description(plan, ids),
    )


@implements(YUN2020, "Proposition 4", "Theorem 3")
def proof_steps(
    c: Constants, kind: NumberKind, table: Table, ids: np.ndarray
) -> Iterator[Step]:
    """The stages of the proof, in the modified class, in order."""
    if c.makes_positions:
        yield position_layer(c, kind)  # Luo et al. 2022, Theorem 3
    if not c.grid.box.is_unit:
        yield read_in(c, kind)
    if not c.positional:
        yield out_of_range(c, kind)
    yield quantise(c, kind)  # Lemma 5
    if c.n == 1:
        yield lift(c, kind)
    else:
        yield selective_shifts(c, kind)  # Lemma 6
        yield global_shift(c, kind)
    if not c.positional:
        if c.softened:
            yield cap_ids(c, kind)
        yield push_down(c, kind)
        yield negative_to_zero(c, kind)
    values = plan_values(c, table, ids)
    yield from value_map(c, kind, table, ids, values)  # Lemma 7
    if c.softened:
        yield clamp(c, kind, written_values(c, table, ids, values))


def _description(plan: Plan, ids: np.ndarray) -> Construction:
    c = plan.constants
    low, high = (c.t_l, c.t_r) if not c.positional else (ids.min(), ids.max() + 1)
    return Construction(
        theorem=c.theorem,
        target=plan.target,
        grid=c.K,
        lows=c.grid.box.lows,
        highs=c.grid.box.highs,
        id_direction=c.u,
        id_low=Fraction(int(low), c.K),
        id_high=Fraction(int(high), c.K),
        ramp_width=RAMP_WIDTH if c.softened else Fraction(0),
        sharpness=Fraction(c.sharpness if c.softened else 0),
        reach=c.reach,
        paper=c.paper.key,
    )
