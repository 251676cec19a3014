"""f at the anchors of a lattice: what the prefix tokens hold."""

import numpy as np

from everyformer.certify.partition.lattice import extensions
from everyformer.construct.partition.layers import Anchored
from everyformer.construct.table import Table
from everyformer.errors import TargetError
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

NOTHING = 2.0**-90
"""Smaller values are 0: the verifier takes no weights that may underflow in products."""


def anchor_table(
    a: Anchored, target: Target, progress: Progress = no_progress, *, clip: bool
) -> Table:
    """f at every anchor, on the margin too.

    Beyond its domain a traced f is what its program says: the bound is proved for that
    program, and an extension of f is as good as another.

    Args:
        a: The lattice.
        target: f.
        progress: Called as progress(what, done, total).
        clip: Whether anchors on the margin hold f at the nearest point of the domain; they
            do for an f that cannot be traced.

    Returns:
        Column numbers of the lattice's own K + 1 + 2m points an axis, and values (P, n, d).

    Raises:
        TargetError: If f returns something impossible.
    """
    anchors = a.lattice.anchors
    progress("evaluate the target", 0, anchors)
    if target.expression is None:
        values = target(a.points(clipped=True))
    elif clip:
        ways = extensions(target.expression, target.domain, almost=True)[1:]
        found = [way(a.points(clipped=True)) for way in ways]
        values = next((v for v in found if np.isfinite(v).all()), found[0])
    else:
        values = target.expression(a.points())
    progress("evaluate the target", anchors, anchors)
    finite = np.isfinite(values).all(axis=(-2, -1))
    if not finite.all():
        point = a.points()[int(np.argmin(finite))].tolist()
        msg = (
            f"{target.name} is not finite at the anchor x = {point}, which may lie beyond "
            "its domain. Use a finer grid or a smaller margin, or restrict the domain."
        )
        raise TargetError(msg)
    values = np.where(np.abs(values) < NOTHING, 0.0, values)
    side = a.lattice.grid.cells + 1 + 2 * a.lattice.margin
    numbers = np.indices((side,) * a.N).reshape(a.N, -1).T.reshape(-1, a.n, a.d)
    return Table(numbers @ side ** np.arange(a.d), values)
