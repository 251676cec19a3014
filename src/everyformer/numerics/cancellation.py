"""Maxima that cancel: softmax is smooth, and its usual program is not.

softmax(s) is computed as exp(s_k - m) / sum_l exp(s_l - m) with m = max(s). Its value does
not depend on m, but its lines have kinks wherever two scores agree. Whether a line depends
on an earlier line m, and how, is followed through the program:

    v = v0           free of m
    v = v0 + c m     shifted: m itself; sums; products with constants; log of a scaled line
    v = e^(c m) v0   scaled: exp of a shifted line; products, quotients, powers, roots;
                     sums, minima and maxima of lines with the same c

where v0 is the line's value with 0 in place of m. If all outputs are free of m, then 0 in
place of m gives the same function.
"""

from dataclasses import dataclass
from fractions import Fraction

from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.rewriting import ancestors, is_partial, pruned

MAX_WORK = 2**20
"""Lines followed, for all minima and maxima together, before the rest are left alone."""


@dataclass(frozen=True)
class _Trait:
    """How a line depends on m: c, and whether m shifts it or scales it."""

    c: Fraction = Fraction(0)
    scales: bool = False

    @property
    def free(self) -> bool:
        return self.c == 0


_FREE = _Trait()


def without_cancelling_maxima(expression: Expression) -> Expression:
    """The same function, with 0 for every min or max that its outputs do not depend on.

    Only minima and maxima of terms that are defined everywhere are looked at, so that the
    result is undefined where the expression is.

    Example:
        >>> scores = (Node("x", (0, 0)), Node("x", (1, 0)), Node("max", (0, 1)))
        >>> shifted = (Node("sub", (0, 2)), Node("sub", (1, 2)), Node("exp", (3,)))
        >>> lines = (*scores, *shifted, Node("exp", (4,)), Node("div", (5, 6)))
        >>> softer = without_cancelling_maxima(Expression(2, 1, lines, ((7,), (7,))))
        >>> [node.op for node in softer.nodes]
        ['x', 'x', 'const', 'sub', 'sub', 'exp', 'exp', 'div']
    """
    nodes = list(expression.nodes)
    outputs = [k for row in expression.outputs for k in row]
    candidates = [k for k, node in enumerate(nodes) if node.op in {"min", "max"}]
    most = MAX_WORK // max(len(nodes), 1)
    for number in candidates[::-1][:most]:
        if _cancels(nodes, number, outputs):
            nodes[number] = Node("const", value=Fraction(0))
    return pruned(expression, nodes, expression.outputs)


def _cancels(nodes: list[Node], m: int, outputs: list[int]) -> bool:
    """Whether no output depends on line m, a term that is defined everywhere."""
    if any(is_partial(nodes, nodes[k]) for k in ancestors(nodes, [m])):
        return False
    traits: list[_Trait | None] = [*[_FREE] * m, _Trait(Fraction(1))]
    for node in nodes[m + 1 :]:
        operands = [traits[k] for k in node.operands]
        known = [trait for trait in operands if trait is not None]
        traits.append(_trait(nodes, node, known) if len(known) == len(operands) else None)
    found = [traits[k] for k in outputs]
    return all(trait is not None and trait.free for trait in found)


def _trait(nodes: list[Node], node: Node, operands: list[_Trait]) -> _Trait | None:
    """How a line depends on m, by its operation; None if in no simple way."""
    if all(trait.free for trait in operands):
        return _FREE
    if len(operands) == 1:
        return _of_one(node, operands[0])
    if node.op == "where":
        condition, a, b = operands
        return a if condition.free and a == b else None
    a, b = operands
    if node.op in {"mul", "div"}:
        return _of_product(nodes, node, a, b)
    if node.op in {"add", "sub"} and not (a.scales or b.scales):
        return _Trait(a.c + b.c if node.op == "add" else a.c - b.c)
    return a if a == b else None  # a sum of scaled lines; min and max of any


def _of_one(node: Node, a: _Trait) -> _Trait | None:
    if node.op == "neg":
        return _Trait(a.c if a.scales else -a.c, a.scales)
    if a.scales:
        factors = {"abs": Fraction(1), "sqrt": Fraction(1, 2), "log": Fraction(1)}
        factor = Fraction(node.args[1]) if node.op == "pow" else factors.get(node.op)
        if factor is None:
            return None
        c = a.c * factor
        return _Trait(c, node.op != "log") if c else _FREE
    if node.op == "pow" and node.args[1] == 1:
        return a
    return _Trait(a.c, scales=True) if node.op == "exp" else None


def _of_product(nodes: list[Node], node: Node, a: _Trait, b: _Trait) -> _Trait | None:
    if (a.free or a.scales) and (b.free or b.scales):
        c = a.c + b.c if node.op == "mul" else a.c - b.c
        return _Trait(c, scales=True) if c else _FREE
    first, second = (nodes[k].value for k in node.args)
    if node.op == "div":
        return _Trait(a.c / second) if second else None
    value = second if second is not None else first
    if value is None or a.scales or b.scales:
        return None
    return _Trait((a.c + b.c) * value) if value else _FREE
