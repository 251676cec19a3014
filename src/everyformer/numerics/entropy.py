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

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from everyformer.numerics.expression import LARGEST, Expression, Node

MAX_TERMS = 64
"""Entries of x in an affine line that is followed; longer ones are left alone."""

MAX_BITS = 2048
"""Of its coefficients."""


@dataclass(frozen=True)
class _Affine:
    """constant + sum of coefficients times entries of x, exactly; none of them is 0."""

    constant: Fraction = Fraction(0)
    terms: Mapping[tuple[int, ...], Fraction] = field(
        default_factory=dict[tuple[int, ...], Fraction]
    )

    def scaled(self, factor: Fraction) -> "_Affine":
        if not factor:
            return _Affine()
        return _Affine(
            self.constant * factor, {k: v * factor for k, v in self.terms.items()}
        )

    def plus(self, other: "_Affine") -> "_Affine":
        total = dict(self.terms)
        for k, v in other.terms.items():
            total[k] = total.get(k, Fraction(0)) + v
        kept = {k: v for k, v in total.items() if v}
        return _Affine(self.constant + other.constant, kept)

    def over(self, other: "_Affine") -> Fraction | None:
        """c with self = c other, if there is one; other is not constant."""
        k, v = next(iter(other.terms.items()))
        c = self.terms.get(k, Fraction(0)) / v
        return c if c and self == other.scaled(c) else None

    @property
    def short(self) -> bool:
        numbers = (self.constant, *self.terms.values())
        bits = max(v.numerator.bit_length() + v.denominator.bit_length() for v in numbers)
        return len(self.terms) <= MAX_TERMS and bits <= MAX_BITS


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
    affine: list[_Affine | None] = []
    place: list[int] = []
    for node in old:
        moved = tuple(place[k] for k in node.operands)
        line = Node(node.op, moved + node.args[len(moved) :], node.value)
        if node.op in {"x", "const"}:
            line = node
        for new in _entropy(lines, affine, line) or [line]:
            lines.append(new)
            affine.append(_affine(affine, new))
        place.append(len(lines) - 1)
    rows = tuple(tuple(place[k] for k in row) for row in expression.outputs)
    return Expression(expression.seq_len, expression.d_model, tuple(lines), rows)


def _affine(known: list[_Affine | None], node: Node) -> _Affine | None:
    """The line as an affine function of x, if it is one and short."""
    if node.op == "x":
        return _Affine(terms={node.args: Fraction(1)})
    if node.op == "const":
        return _Affine(node.value or Fraction(0))
    if node.op not in {"add", "sub", "neg", "mul", "div"}:
        return None
    a, b = known[node.args[0]], known[node.args[-1]]
    if a is None or b is None:
        return None
    result = None
    if node.op in {"add", "sub"}:
        result = a.plus(b if node.op == "add" else b.scaled(Fraction(-1)))
    elif node.op == "neg":
        result = a.scaled(Fraction(-1))
    elif node.op == "mul" and not (a.terms and b.terms):
        result = a.scaled(b.constant) if a.terms else b.scaled(a.constant)
    elif node.op == "div" and not b.terms and b.constant:
        result = a.scaled(1 / b.constant)
    return result if result is not None and result.short else None


def _entropy(
    lines: list[Node], affine: list[_Affine | None], node: Node
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
    lines: list[Node], affine: list[_Affine | None], factor: int, u: int
) -> Node | None:
    """factor / u as a line: a constant, or a power of u; None if it is neither."""
    line, form, of_u = lines[factor], affine[factor], affine[u]
    if line.op == "pow" and line.args[0] == u and line.args[1] >= 2:
        return Node("pow", (u, line.args[1] - 1))
    if form is None or of_u is None:
        return None
    c = form.over(of_u)
    return Node("const", value=c) if c is not None and abs(c) <= LARGEST else None
