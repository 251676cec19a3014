"""u log u where u touches 0: continuous there, though its program is not.

The product of u with log u has no value where u = 0: log 0 does not exist, and float64 has
0 * -inf = nan. But u log u -> 0, and where u is an affine function of x that is not
constant, u = 0 holds only on a hyperplane: a set of measure 0, which changes no integral.
So for such u the lines

    (c u) log u      u^k log u      u (log u / t)

are read as c w, u^(k-1) w and w / t with the line w = xlogx(u), which is u log u with the
value 0 at u = 0. Where u < 0 nothing is defined, as before. For other u nothing is changed:
max(x - 1/2, 0) is 0 on half of [0, 1], and there its program has no value.
"""

from fractions import Fraction

from everyformer.numerics.affine import Affine, combined
from everyformer.numerics.expression import LARGEST, Expression, Node
from everyformer.numerics.rewriting import moved

Linear = Affine[tuple[int, ...]]
"""A line as an affine function of the entries of x."""


def with_entropies(expression: Expression) -> Expression:
    """The same function almost everywhere, with a value where u log u had none.

    Example:
        >>> lines = (Node("x", (0, 0)), Node("log", (0,)), Node("mul", (0, 1)))
        >>> found = with_entropies(Expression(1, 1, lines, ((2,),)))
        >>> found.to_json()["nodes"]
        [['x', 0, 0], ['log', 0], ['xlogx', 0], ['const', '1'], ['mul', 2, 3]]
    """
    old = expression.nodes
    if not any(node.op == "log" for node in old):
        return expression
    lines: list[Node] = []
    affine: list[Linear | None] = []
    place: list[int] = []
    for node in old:
        line = moved(node, place)
        for new in _entropy(lines, affine, line) or [line]:
            lines.append(new)
            affine.append(_affine(affine, new))
        place.append(len(lines) - 1)
    rows = tuple(tuple(place[k] for k in row) for row in expression.outputs)
    return Expression(expression.seq_len, expression.d_model, tuple(lines), rows)


def _affine(known: list[Linear | None], node: Node) -> Linear | None:
    """The line as an affine function of x, if it is one and short."""
    if node.op == "x":
        return Linear.of(node.args)
    if node.op == "const":
        return Linear.constant(node.value or Fraction(0))
    if node.op not in {"add", "sub", "neg", "mul", "div"}:
        return None
    return combined(node.op, known[node.args[0]], known[node.args[-1]])


def _entropy(
    lines: list[Node], affine: list[Linear | None], node: Node
) -> list[Node] | None:
    """The lines in place of a product that is u log u times something; else None."""
    if node.op != "mul":
        return None
    for factor, logarithm in (node.args, node.args[::-1]):
        line, divisor = lines[logarithm], None
        if line.op == "div":
            line, divisor = lines[line.args[0]], line.args[1]
        if line.op != "log":
            continue
        u = line.args[0]
        form = affine[u]
        rest = None if form is None or not form.terms else _rest(lines, affine, factor, u)
        if rest is None:
            continue
        start = len(lines)
        result = [Node("xlogx", (u,)), rest, Node("mul", (start, start + 1))]
        return result if divisor is None else [*result, Node("div", (start + 2, divisor))]
    return None


def _rest(
    lines: list[Node], affine: list[Linear | None], factor: int, u: int
) -> Node | None:
    """factor / u as a line: a constant, or a power of u; None if it is neither."""
    line, form, of_u = lines[factor], affine[factor], affine[u]
    if line.op == "pow" and line.args[0] == u and line.args[1] >= 2:
        return Node("pow", (u, line.args[1] - 1))
    if form is None or of_u is None:
        return None
    c = form.over(of_u)
    return Node("const", value=c) if c is not None and abs(c) <= LARGEST else None
