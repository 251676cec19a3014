"""What rewritings of expressions share: lines and what they use, lines without a value."""

from collections.abc import Iterable, Sequence

from everyformer.numerics.expression import Expression, Node

PARTIAL = frozenset({"div", "log", "sqrt", "xlogx"})
"""Operations that are not defined for all numbers; so are negative powers."""


def is_partial(nodes: Sequence[Node], node: Node) -> bool:
    """Whether a line may have no value where its operands have one."""
    if node.op == "div" and nodes[node.args[1]].value:
        return False  # by a constant that is not 0
    return node.op in PARTIAL or (node.op == "pow" and node.args[1] < 0)


def ancestors(nodes: Sequence[Node], lines: Iterable[int]) -> set[int]:
    """The lines, and all that they use."""
    found: set[int] = set()
    waiting = list(lines)
    while waiting:
        k = waiting.pop()
        if k not in found:
            found.add(k)
            waiting += nodes[k].operands
    return found


def moved(node: Node, place: Sequence[int] | dict[int, int]) -> Node:
    """The same line, where the lines that it uses have other numbers."""
    if node.op in {"x", "const"}:
        return node
    operands = tuple(place[k] for k in node.operands)
    return Node(node.op, operands + node.args[len(operands) :])


def pruned(
    expression: Expression, nodes: Sequence[Node], outputs: Sequence[Sequence[int]]
) -> Expression:
    """The lines that the outputs need, numbered anew; n and d are the expression's."""
    kept = sorted(ancestors(nodes, (k for row in outputs for k in row)))
    place = {k: number for number, k in enumerate(kept)}
    lines = tuple(moved(nodes[k], place) for k in kept)
    rows = tuple(tuple(place[k] for k in row) for row in outputs)
    return Expression(expression.seq_len, expression.d_model, lines, rows)
