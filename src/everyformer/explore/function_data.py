"""f for the page: its program where it could be traced, else its values at points.

A program is a list of operations that the page's interpreter knows by name
(`everyformer.numerics.expression`); nothing in it is evaluated as code.
"""

from typing import Any

import numpy as np

from everyformer.certify.certificate import Certificate
from everyformer.errors import TargetError
from everyformer.explore.embedding import embedded, finite_float
from everyformer.numerics.expression import Expression
from everyformer.targets.target import Target

MAX_LINES = 200_000
"""Lines of a program that a page may hold."""

MAX_SAMPLES = 40_000
"""Values of f that a page may hold in place of a program."""


def function_data(
    target: Target | None, certificate: Certificate | None
) -> dict[str, Any] | None:
    """f, from the target or from what a certificate states of it; None if unknown."""
    expression = None if target is None else target.expression
    if expression is None and certificate is not None:
        expression = certificate.statement.expression
    if expression is not None and len(expression.nodes) <= MAX_LINES:
        return program_data(expression)
    return None if target is None else sampled_data(target)


def program_data(expression: Expression) -> dict[str, Any]:
    """The lines of a program, with constants as numbers."""
    nodes: list[list[Any]] = []
    for node in expression.nodes:
        if node.op == "const":
            nodes.append([node.op, finite_float(node.value)])
        else:
            nodes.append([node.op, *node.args])
    return {
        "kind": "program",
        "nodes": nodes,
        "outputs": [list(row) for row in expression.outputs],
    }


def sampled_data(target: Target) -> dict[str, Any] | None:
    """f on a lattice of the box, the same points along every axis; None if f fails."""
    axes = target.seq_len * target.d_model
    per_axis = int(min(257, (MAX_SAMPLES / axes) ** (1 / axes) + 1e-9))
    if per_axis < 2:
        return None
    ends = zip(target.domain.lows, target.domain.highs, strict=True)
    lines = [np.linspace(low, high, per_axis) for low, high in ends] * target.seq_len
    mesh = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)
    points = mesh.reshape(-1, target.seq_len, target.d_model)
    try:
        values = target(points)
    except TargetError:
        return None
    return {
        "kind": "samples",
        "perAxis": per_axis,
        "lows": list(target.domain.lows),
        "highs": list(target.domain.highs),
        "values": embedded(values.reshape(-1)),
    }
