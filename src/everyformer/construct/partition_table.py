"""f at the anchors of a lattice: what the prefix tokens hold."""

import numpy as np

from everyformer.certify.lattice import clipped
from everyformer.construct.partition import Anchored
from everyformer.construct.partition_plan import PartitionPlan
from everyformer.construct.table import Table
from everyformer.errors import TargetError
from everyformer.model.forward import Progress, no_progress
from everyformer.targets.target import Target

NOTHING = 2.0**-90
"""Smaller values are 0: the verifier takes no weights that may underflow in products."""


def anchor_table(
    plan: PartitionPlan, target: Target, progress: Progress = no_progress
) -> Table:
    """f at every anchor, on the margin too.

    Beyond its domain a traced f is what its program says: the bound is proved for that
    program, and an extension of f is as good as another. If the plan clips, and for an f
    that cannot be traced, anchors on the margin hold f at the nearest point of the domain.

    Returns:
        Column numbers of the lattice's own K + 1 + 2m points an axis, and values (P, n, d).

    Raises:
        TargetError: If f returns something impossible.
    """
    a = Anchored(plan.partition)
    progress("evaluate the target", 0, plan.prefix_tokens)
    if target.expression is None:
        values = target(a.points(clipped=True))
    elif plan.clipped:
        inside = clipped(target.expression, target.domain)
        values = inside(a.points(clipped=True))
    else:
        values = target.expression(a.points())
    progress("evaluate the target", plan.prefix_tokens, plan.prefix_tokens)
    finite = np.isfinite(values).all(axis=(-2, -1))
    if not finite.all():
        point = a.points()[int(np.argmin(finite))].tolist()
        msg = (
            f"{target.name} is not finite at the anchor x = {point}, which may lie beyond "
            "its domain. Use a finer grid or a smaller margin, or restrict the domain."
        )
        raise TargetError(msg)
    values = np.where(np.abs(values) < NOTHING, 0.0, values)
    side = plan.grid + 1 + 2 * plan.partition.margin
    numbers = np.indices((side,) * a.N).reshape(a.N, -1).T.reshape(-1, a.n, a.d)
    return Table(numbers @ side ** np.arange(a.d), values)
