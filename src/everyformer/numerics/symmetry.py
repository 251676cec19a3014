"""Is an expression permutation equivariant? A proof by syntax, in real arithmetic.

f(PX) = P f(X) for all permutations P of the tokens if it holds for two that generate them:
exchanging the first two tokens, and moving every token one place on. For each, the inputs
are renamed and the outputs compared, after both are brought into a normal form:

    sum      c + sum_k q_k t_k           q_k rational, t_k normal forms other than sums
    product  prod_k t_k^{e_k}            e_k > 0, no t_k a product; 1/t is a form of its own
    min, max of a set of forms
    f(t)     abs, cos, sin, tanh with the sign of t taken out

Equal forms have equal numbers, so that shared parts are looked at once. Parts that may be
undefined are never cancelled: 0 * log(x) stays, 0 * x does not.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from everyformer.numerics.expression import Expression, Node

MAX_TERMS = 2_000
"""Sums, products and sets of forms that are longer than this are not merged into others."""

MAX_BITS = 10_000
"""It gives up at coefficients longer than this."""

MAX_WORK = 1_000_000
"""Terms handled before it gives up."""

Rational = int | Fraction


def is_equivariant(expression: Expression) -> bool:
    """True only if f(PX) = P f(X) for every permutation P of the tokens is proved.

    False means that it is not proved, by this method and within its limits.

    Example:
        >>> lines = (Node("x", (0, 0)), Node("x", (1, 0)), Node("add", (0, 1)))
        >>> is_equivariant(Expression(2, 1, lines, ((2,), (2,))))
        True
        >>> is_equivariant(Expression(2, 1, lines, ((0,), (0,))))
        False
    """
    n = expression.seq_len
    forms = _Forms()
    try:
        before = forms.outputs(expression, lambda j: j)
        for sigma in ([1, 0, *range(2, n)], [*range(1, n), 0]) if n > 1 else ():
            after = forms.outputs(expression, sigma.__getitem__)
            if any(after[j] != before[sigma[j]] for j in range(n)):
                return False
    except _GiveUpError:
        return False
    return True


class _GiveUpError(Exception):
    """The normal forms take too much work."""


class _Forms:
    """Normal forms, each under a number.

    A form is ("x", j, i), ("sum", c, ((t, q), ...)), ("product", ((t, e), ...)),
    ("min", (t, ...)), ("max", (t, ...)), ("where", t, t, t), ("inverse", t) or
    (operation, t).
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._forms: list[tuple[Any, ...]] = []
        self._defined: list[bool] = []
        self._work = 0
        self._one = self._sum(1, {})

    def outputs(
        self, expression: Expression, rename: Callable[[int], int]
    ) -> list[list[int]]:
        """The forms of all outputs after x[j] is replaced by x[rename(j)]."""
        found: list[int] = []
        for node in expression.nodes:
            if node.op == "x":
                j, i = node.args
                found.append(self._form(("x", rename(j), i), defined=True))
            else:
                found.append(self._of(node, [found[k] for k in node.operands]))
        return [[found[k] for k in row] for row in expression.outputs]

    def _of(self, node: Node, args: list[int]) -> int:
        match node.op:
            case "const":
                value = node.value or 0
                return self._sum(int(value) if value.denominator == 1 else value, {})
            case "add":
                return self._plus(args[0], args[1])
            case "sub":
                return self._plus(args[0], args[1], -1)
            case "neg":
                return self._times(-1, args[0])
            case "mul":
                return self._product(args[0], args[1])
            case "div":
                return self._product(args[0], self._inverse(args[1]))
            case "pow":
                return self._power(args[0], node.args[1])
            case "min" | "max":
                return self._extreme(node.op, args[0], args[1])
            case "where":
                return self._where(*args)
            case _:
                return self._unary(node.op, args[0])

    def _form(self, form: tuple[Any, ...], *, defined: bool) -> int:
        number = self._numbers.setdefault(form, len(self._forms))
        if number == len(self._forms):
            self._forms.append(form)
            self._defined.append(defined)
        return number

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > MAX_WORK:
            raise _GiveUpError

    def _sum(self, constant: Rational, terms: dict[int, Rational]) -> int:
        self._spend(1 + len(terms))
        if any(_bits(q) > MAX_BITS for q in (constant, *terms.values())):
            raise _GiveUpError
        kept = {t: q for t, q in sorted(terms.items()) if q or not self._defined[t]}
        if constant == 0 and list(kept.values()) == [1]:
            return next(iter(kept))
        defined = all(self._defined[t] for t in kept)
        return self._form(("sum", constant, tuple(kept.items())), defined=defined)

    def _terms(self, number: int) -> tuple[Rational, dict[int, Rational]]:
        """The constant and the terms that add up to a form."""
        form = self._forms[number]
        if form[0] == "sum" and len(form[2]) <= MAX_TERMS:
            return form[1], dict(form[2])
        return 0, {number: 1}

    def _plus(self, a: int, b: int, sign: int = 1) -> int:
        constant, terms = self._terms(a)
        other, more = self._terms(b)
        for t, q in more.items():
            terms[t] = terms.get(t, 0) + sign * q
        return self._sum(constant + sign * other, terms)

    def _times(self, factor: Rational, a: int) -> int:
        constant, terms = self._terms(a)
        return self._sum(factor * constant, {t: factor * q for t, q in terms.items()})

    def _monic(self, a: int) -> tuple[Rational, int]:
        """(q, t) with a = q t, where the first coefficient of t is 1."""
        constant, terms = self._terms(a)
        if not terms:
            return constant, self._one
        if len(terms) == 1 and constant == 0:
            ((t, q),) = terms.items()
            return (q, t) if q else (1, a)
        lead = next((q for q in (*terms.values(), constant) if q), 1)
        return lead, self._times(Fraction(1) / lead, a)

    def _factors(self, number: int) -> dict[int, int]:
        form = self._forms[number]
        if number == self._one:
            return {}
        if form[0] == "product" and len(form[1]) <= MAX_TERMS:
            self._spend(1 + len(form[1]))
            return dict(form[1])
        return {number: 1}

    def _multiplied(self, factors: dict[int, int]) -> int:
        if not factors:
            return self._one
        if list(factors.values()) == [1]:
            return next(iter(factors))
        defined = all(self._defined[t] for t in factors)
        return self._form(("product", tuple(sorted(factors.items()))), defined=defined)

    def _product(self, a: int, b: int) -> int:
        (p, s), (q, t) = self._monic(a), self._monic(b)
        factors = self._factors(s)
        for part, exponent in self._factors(t).items():
            factors[part] = factors.get(part, 0) + exponent
        return self._times(p * q, self._multiplied(factors))

    def _power(self, a: int, exponent: int) -> int:
        if exponent == 0:
            return self._plus(self._one, self._times(0, a))  # 1, where a is
        if exponent < 0:
            return self._power(self._inverse(a), -exponent)
        q, t = self._monic(a)
        if _bits(q) * exponent > MAX_BITS:
            raise _GiveUpError
        factors = {part: e * exponent for part, e in self._factors(t).items()}
        return self._times(q**exponent, self._multiplied(factors))

    def _inverse(self, a: int) -> int:
        q, t = self._monic(a)
        if q == 0:
            return self._form(("inverse", a), defined=False)
        if t == self._one:
            return self._sum(Fraction(1) / q, {})
        return self._times(Fraction(1) / q, self._form(("inverse", t), defined=False))

    def _extreme(self, op: str, a: int, b: int) -> int:
        parts: set[int] = set()
        for number in (a, b):
            form = self._forms[number]
            merge = form[0] == op and len(form[1]) <= MAX_TERMS
            parts.update(form[1] if merge else (number,))
        self._spend(len(parts))
        if len(parts) == 1:
            return a
        defined = all(self._defined[t] for t in parts)
        return self._form((op, tuple(sorted(parts))), defined=defined)

    def _where(self, c: int, a: int, b: int) -> int:
        """A form of its own: equal conditions and equal branches make it equal."""
        defined = self._defined[c] and self._defined[a] and self._defined[b]
        return self._form(("where", c, a, b), defined=defined)

    def _unary(self, op: str, a: int) -> int:
        defined = self._defined[a] and op not in {"log", "sqrt", "xlogx"}
        if op not in {"abs", "cos", "sin", "tanh"}:
            return self._form((op, a), defined=defined)
        q, _ = self._monic(a)
        if q >= 0:
            return self._form((op, a), defined=defined)
        mirrored = self._form((op, self._times(-1, a)), defined=defined)
        return mirrored if op in {"abs", "cos"} else self._times(-1, mirrored)


def _bits(value: Rational) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()
