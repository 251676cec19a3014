"""Products, quotients and powers: a number times powers of factors, for each token.

e^a e^b       one exponential of a + b
1/(1 + e^a)   the logistic function of -a, and e^a/(1 + e^a) that of a
c_i v^(-1/2)  with v = delta + w sum_i c_i^2: c_i is normalised
v^s           a power, s = .., -1, -1/2, 1/2, 2, ..
the rest      products of two
"""

from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING

from everyformer.construct.compile.lifting.families import Family
from everyformer.construct.compile.lifting.lines import (
    ONE,
    ZERO,
    Rational,
    ratio,
)
from everyformer.construct.compile.program import Form
from everyformer.numerics.rationals import rational_root

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

Factors = dict[int, Rational]
"""Lines and their exponents."""


def monomial(lift: "Lift", family: Family) -> Form:
    """The form of a product for each token, all with the same exponents."""
    parts = [lift.table.monomial(line) for line in family]
    coefficients = [c for c, _ in parts]
    lanes = [dict(factors) for _, factors in parts]
    if len(set(family)) == 1 and len(lanes[0]) > 1 and lift.n > 1:
        found = _over_tokens(lift, family, lanes[0])
        if found is not None:
            return lift.build.scale(found, coefficients)
    found = _factors(lift, family, lanes)
    lift.says(family)
    return lift.build.scale(_product(lift, found), coefficients)


def _factors(lift: "Lift", family: Family, lanes: list[Factors]) -> list[Form]:
    """The forms whose product it is."""
    found = _normalised(lift, lanes)
    exponentials = [_take_exponentials(lift, lane) for lane in lanes]
    for power in sorted({power for lane in lanes for power in lane.values()}):
        rows = [[line for line, p in lane.items() if p == power] for lane in lanes]
        for column, _ in lift.match.align(rows):
            logistic = _logistic(lift, column, exponentials) if power == -1 else None
            if logistic is None:
                logistic = raised(lift, lift.family(column), power, column)
            found.append(logistic)
    exponents = [
        [(lift.table.nodes[line].args[0], power) for line, power in lane.items()]
        for lane in exponentials
    ]
    if any(exponents):
        argument = lift.sums(exponents)
        lift.says(family)
        found.append(lift.build.unary("exp", argument))
    return found


def _product(lift: "Lift", found: list[Form]) -> Form:
    return reduce(lift.build.product, found, Form.constant(1))


def raised(lift: "Lift", value: Form, power: Rational, lines: Family) -> Form:
    """value^power, after a look at where the value lies.

    Raises:
        TargetError: If the power may be undefined.
    """
    build = lift.build
    whole = power.denominator == 1
    lift.says(lines)
    if whole and power > 0:
        return build.unary("pow", value, power)
    found = build.range(value)
    if whole and found.high < 0:
        sign = -1 if power % 2 else 1
        return build.form(build.unary("pow", value * -1, power) * sign)
    if not whole and power > 0:
        lift.check_above(value, lines, "takes the root of", zero=True)
    elif not found.low > 0:
        what = "divides by" if whole else "divides by the root of"
        lift.refuse_domain(lines, what, "0" if whole else "0 or less", found)
    return build.unary("pow", value, power)


def _take_exponentials(lift: "Lift", lane: Factors) -> Factors:
    """Remove the exponentials among the factors."""
    found = {k: p for k, p in lane.items() if lift.table.nodes[k].op == "exp"}
    for line in found:
        del lane[line]
    return found


def _logistic(lift: "Lift", column: Family, exponentials: list[Factors]) -> Form | None:
    """1/(a + a e^s), or e^t/(a e^t + a e^s), as (1/a) logistic; None if it is neither."""
    arguments: list[list[tuple[int, Rational]]] = []
    sizes: list[Rational] = []
    taken: list[int | None] = []
    for line, factors in zip(column, exponentials, strict=True):
        terms, offset = lift.table.opened([(line, ONE)])
        if any(lift.table.nodes[k].op != "exp" for k in terms):
            return None
        sizes.append(next(iter(terms.values()), ZERO))
        if sizes[-1] <= 0 or set(terms.values()) | ({offset} if offset else set()) != {
            sizes[-1]
        }:
            return None
        above = [k for k in terms if factors.get(k) == 1]
        inner = {k: lift.table.nodes[k].args[0] for k in terms}
        if offset and len(terms) == 1:
            (only,) = terms
            arguments.append([(inner[only], ONE if above else -ONE)])
        elif not offset and len(terms) == 2 and len(above) == 1:
            (other,) = set(terms) - set(above)
            arguments.append([(inner[above[0]], ONE), (inner[other], -ONE)])
        else:
            return None
        taken.append(above[0] if above else None)
    for factors, line in zip(exponentials, taken, strict=True):
        if line is not None:
            del factors[line]
    argument = lift.sums(arguments)
    lift.says(column)
    value = lift.build.unary("logistic", argument)
    return lift.build.scale(value, [ratio(1, size) for size in sizes])


def _normalised(lift: "Lift", lanes: list[Factors]) -> list[Form]:
    """c_i / sqrt(delta + w sum c^2), removed from the factors, if every token has one."""
    half = Fraction(-1, 2)
    roots = [[k for k, power in lane.items() if power == half] for lane in lanes]
    if any(len(row) != 1 for row in roots):
        return []
    table = lift.table
    rows: list[list[int]] = []
    numbers: set[tuple[Rational, Rational]] = set()
    for (root,) in roots:
        terms, delta = table.opened([(root, ONE)], ())
        squares = [table.nodes[k] for k in terms]
        weights = set(terms.values())
        plain = all(node.op == "pow" and node.args[1] == 2 for node in squares)
        if not plain or len(weights) != 1 or delta <= 0:
            return []
        rows.append([node.args[0] for node in squares])
        numbers.add((weights.pop(), delta))
    if len(numbers) != 1 or len({len(row) for row in rows}) != 1:
        return []
    ((weight, delta),) = numbers
    count = len(rows[0])
    size = rational_root(weight * count)
    columns = [column for column, _ in lift.match.align(rows)]
    index = next(
        (
            i
            for i, column in enumerate(columns)
            if all(lane.get(c) == 1 for c, lane in zip(column, lanes, strict=True))
        ),
        None,
    )
    if size is None or index is None:
        return []
    parts = [lift.family(column) for column in columns]
    lift.says(tuple(row[0] for row in roots))
    for lane, (root,), line in zip(lanes, roots, columns[index], strict=True):
        del lane[root], lane[line]
    unit = lift.build.normalise(parts, Fraction(delta) / (weight * count), index)
    return [lift.build.form(unit * (1 / size))]


def _over_tokens(lift: "Lift", family: Family, factors: Factors) -> Form | None:
    """A product that all tokens have, with a factor from each; None if they share none."""
    n, build = lift.n, lift.build
    local: list[Form] = []
    uniform: Factors = dict(factors)
    for power in sorted(set(factors.values())):
        lines = [line for line, p in factors.items() if p == power]
        for column in lift.match.gathered(lines):
            if len(set(column)) == n and set(column) <= set(lines):
                local.append(raised(lift, lift.family(column), power, column))
                for line in column:
                    del uniform[line]
    if not local:
        return None
    lift.says(family)
    whole = _window(lift, _product(lift, local))
    rest = _factors(lift, family, [dict(uniform) for _ in range(n)])
    return build.form(_product(lift, [whole, *rest]))


def _window(lift: "Lift", value: Form) -> Form:
    """The product over all tokens: windows of 1, 2, 4, .. tokens, those that n needs."""
    n, build = lift.n, lift.build
    window, size = value, 1
    done, covered = Form.constant(1), 0
    while True:
        if n & size:
            moved = build.gather(window, [(j + covered) % n for j in range(n)])
            done, covered = build.product(done, moved), covered + size
        if 2 * size > n:
            return done
        step = [(j + size) % n for j in range(n)]
        window, size = build.product(window, build.gather(window, step)), 2 * size
