"""From a plan to a network: the steps of each construction, in order."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from everyformer.construct.averaging import (
    Averaging,
    averaging_stages,
    read_in_out,
)
from everyformer.construct.averaging_plan import AveragingPlan
from everyformer.construct.constants import RAMP_WIDTH, Constants
from everyformer.construct.contextual import (
    contextual_ids,
    global_shift,
    lift,
    selective_shifts,
)
from everyformer.construct.partition import Anchored, partition_stages
from everyformer.construct.partition import read_in_out as with_anchors
from everyformer.construct.partition_plan import PartitionPlan
from everyformer.construct.partition_table import anchor_table
from everyformer.construct.plan import Plan
from everyformer.construct.position_layer import position_layer
from everyformer.construct.quantise import (
    out_of_range,
    positional_encoding,
    quantise,
    read_in,
)
from everyformer.construct.soften import soften
from everyformer.construct.sparse import sparse_ids, sparse_shifts
from everyformer.construct.sparse_constants import SparseConstants, lifted
from everyformer.construct.step import Step
from everyformer.construct.table import Table, all_multisets, piecewise_constant
from everyformer.construct.value import (
    cap_ids,
    clamp,
    negative_to_zero,
    plan_values,
    push_down,
    value_map,
    written_values,
)
from everyformer.model.construction import Construction
from everyformer.model.forward import Progress, no_progress
from everyformer.model.network import Network
from everyformer.numerics.kinds import EXACT, FLOAT64, NumberKind
from everyformer.papers import YUN2020, implements
from everyformer.targets.target import Target


def tabulate(plan: Plan, target: Target, progress: Progress = no_progress) -> Table:
    """The target at the centre of every cell that the network tells apart."""
    c = plan.constants
    if isinstance(plan, PartitionPlan):
        return anchor_table(plan, target, progress)
    if isinstance(plan, AveragingPlan) and not plan.averaging.positional:
        return all_multisets(c, target, progress)
    return piecewise_constant(c, target, progress)


def build_network(plan: Plan, table: Table, progress: Progress = no_progress) -> Network:
    """The network of a plan that computes a table (Lemma 8 is behind us)."""
    if isinstance(plan, AveragingPlan):
        progress("build: averaging attention", 0, len(plan.stages))
        return Network(
            architecture=plan.architecture,
            stages=tuple(averaging_stages(plan.averaging, table)),
            construction=_averaging_description(plan.averaging, plan.target),
            registers=read_in_out(plan.averaging),
        )
    if isinstance(plan, PartitionPlan):
        progress("build: softmax partition of unity", 0, len(plan.stages))
        anchored = Anchored(plan.partition)
        return Network(
            architecture=plan.architecture,
            stages=tuple(partition_stages(anchored, table.values)),
            construction=_partition_description(plan),
            registers=with_anchors(anchored, table.values),
        )
    c = plan.constants
    if isinstance(c, SparseConstants):
        c = lifted(c, table)
    kind = FLOAT64 if c.softened else EXACT
    sparse = isinstance(c, SparseConstants)
    ids = sparse_ids(c, table.columns) if sparse else contextual_ids(c, table.columns)
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
    elif isinstance(c, SparseConstants):
        yield from sparse_shifts(c, kind)  # Yun et al. 2020b, Theorem 1
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


def _partition_description(plan: PartitionPlan) -> Construction:
    box = plan.constants.grid.box
    return Construction(
        theorem="Partition",
        target=plan.target,
        grid=plan.grid,
        lows=box.lows,
        highs=box.highs,
        id_direction=(0,) * plan.architecture.inner_width,  # there are no ids
        id_low=Fraction(0),
        id_high=Fraction(1),
        ramp_width=Fraction(0),
        sharpness=plan.partition.D * plan.grid**2,
        reach=0,
        paper="everyformer",
    )


def _averaging_description(a: Averaging, target: str) -> Construction:
    return Construction(
        theorem="Averaging",
        target=target,
        grid=a.K,
        lows=a.grid.box.lows,
        highs=a.grid.box.highs,
        id_direction=tuple(int(v) for v in a.layout.vector(C=1)),
        id_low=Fraction(0),
        id_high=Fraction(a.largest_key + 1),
        ramp_width=a.ramp,
        sharpness=Fraction(0),
        reach=0,
        paper="everyformer",
    )


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
