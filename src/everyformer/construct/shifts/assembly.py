"""The network of selective shifts: the steps of the proof, in order."""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import TypeVar

import numpy as np

from everyformer.construct.shifts.constants import RAMP_WIDTH, Constants
from everyformer.construct.shifts.position_layer import position_layer
from everyformer.construct.shifts.quantise import (
    out_of_range,
    positional_encoding,
    quantise,
    read_in,
)
from everyformer.construct.shifts.soften import soften
from everyformer.construct.shifts.step import ProofStep
from everyformer.construct.shifts.value import (
    cap_ids,
    clamp,
    negative_to_zero,
    plan_values,
    push_down,
    value_map,
    written_values,
)
from everyformer.construct.table import Table
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction, Ids
from everyformer.model.network import Network
from everyformer.model.stacks import Stage
from everyformer.numerics.kinds import EXACT, FLOAT64, NumberKind
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress

C = TypeVar("C", bound=Constants)


@implements(YUN2020, "Proposition 4", "Theorem 3")
def proof_steps(
    c: C,
    contextual: Callable[[C, NumberKind], Iterator[ProofStep]],
    table: Table,
    ids: np.ndarray,
) -> Iterator[ProofStep]:
    """The stages of the proof, in the modified class, in order.

    Args:
        c: The constants.
        contextual: The attention layers that make ids.
        table: What the network is to compute.
        ids: The ids of the table's columns.
    """
    kind = number_kind(c)
    if c.makes_positions:
        yield position_layer(c, kind)  # Luo et al. 2022, Theorem 3
    if not c.grid.box.is_unit:
        yield read_in(c, kind)
    if not c.positional:
        yield out_of_range(c, kind)
    yield quantise(c, kind)  # Lemma 5
    yield from contextual(c, kind)  # Lemma 6
    if not c.positional:
        if c.softened:
            yield cap_ids(c, kind)
        yield push_down(c, kind)
        yield negative_to_zero(c, kind)
    values = plan_values(c, table, ids)
    yield from value_map(c, kind, table, ids, values)  # Lemma 7
    if c.softened:
        yield clamp(c, kind, written_values(c, table, ids, values))


def number_kind(c: Constants) -> NumberKind:
    """float64 for softmax and ReLU, rationals for the modified class."""
    return FLOAT64 if c.softened else EXACT


def network_of(
    architecture: ArchitectureSpec,
    construction: Construction,
    c: Constants,
    steps: Iterator[ProofStep],
    progress: Progress = no_progress,
) -> Network:
    """The network that takes the steps, softened (Lemma 9) or as they are."""
    stages: list[Stage] = []
    for step in steps:
        progress(f"build: {step.stage.name}", len(stages), len(stages) + 1)
        stages.append(soften(step, c.sharpness) if c.softened else step.stage)
    positional = architecture.positional
    return Network(
        architecture=architecture,
        stages=tuple(stages),
        positions=positional_encoding(c, number_kind(c)) if positional else None,
        construction=construction,
    )


def description(c: Constants, target: str, ids: np.ndarray) -> Construction:
    """What is known of the network besides its weights."""
    low, high = (c.t_l, c.t_r) if not c.positional else (ids.min(), ids.max() + 1)
    return Construction(
        theorem=c.theorem,
        target=target,
        grid=c.K,
        lows=c.grid.box.lows,
        highs=c.grid.box.highs,
        ids=Ids(c.u, Fraction(int(low), c.K), Fraction(int(high), c.K)),
        ramp_width=RAMP_WIDTH if c.softened else Fraction(0),
        sharpness=Fraction(c.sharpness if c.softened else 0),
        reach=c.reach,
        paper=c.paper.key,
    )
