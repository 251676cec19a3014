"""A compiled program for people: when, where, what, and between which numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from everyformer.construct.compile.lowering.allocate import Allocation
from everyformer.construct.compile.lowering.gadgets import Cell, Head, Reading, Term, Work
from everyformer.construct.compile.lowering.macros import NormaliseMacro, ProductMacro
from everyformer.construct.compile.ranges import Range
from everyformer.model.compiled import ProgramStep

QUARTER = Fraction(1, 4)
SHORT = 14
"""Digits of a rational that is shown in full."""


@dataclass(frozen=True, eq=False)
class Line:
    """One cell that is written in one slot."""

    slot: int
    target: Cell
    work: Work


def listing(
    lines: list[Line],
    places: Allocation,
    outputs: list[Reading],
    ranges: Mapping[Cell, Range],
) -> str:
    """One line for each register that is set, written or cleared.

    What is written is followed by the line of the user's program that it belongs to.
    """
    text = [
        f"start      {_name(cell, places)} = {cell.name}"
        for cell in places.register
        if not cell.is_work
    ]
    written = [(line.slot, _line(line, places, ranges)) for line in lines]
    cleared = [(slot, f"r{r} cleared") for slot, r in places.clears]
    for slot, what in sorted(written + cleared, key=lambda entry: entry[0]):
        half = "ff" if slot % 2 else "attn"
        text.append(f"{slot // 2:<3} {half:<6} {what}")
    text += [f"result {i + 1} = {shown(r, places)}" for i, r in enumerate(outputs)]
    return "\n".join(text)


def _line(line: Line, places: Allocation, ranges: Mapping[Cell, Range]) -> str:
    what = f"{_name(line.target, places)} = {_what(line, places)}"
    if line.target in ranges:
        known = ranges[line.target]
        what += f" in [{float(known.low):.6g}, {float(known.high):.6g}]"
    return f"{what}    # {line.target.origin}" if line.target.origin else what


def steps(
    lines: list[Line],
    places: Allocation,
    outputs: list[Reading],
    macros: Sequence[ProductMacro | NormaliseMacro],
) -> tuple[ProgramStep, ...]:
    """What registers hold after slots: what is written, products, and the results."""
    found: list[ProgramStep] = []
    squares = {m.minus: m.plus for m in macros if isinstance(m, ProductMacro)}
    for line in lines:
        target = line.target
        what = f"{_name(target, places)} = {_what(line, places)}"
        own = ((places.register[target], 1.0),)
        found.append(ProgramStep(line.slot, own, what, target.origin))
        if target in squares:
            both = Reading.of(squares[target], QUARTER) - Reading.of(target, QUARTER)
            product = _form(both, places)
            what = f"{shown(both, places)}, a product"
            found.append(ProgramStep(line.slot, product, what, target.origin))
    last = max((line.slot for line in lines), default=0)
    for i, result in enumerate(outputs):
        what = f"result {i + 1} = {shown(result, places)}"
        found.append(ProgramStep(last, _form(result, places), what, ""))
    return tuple(sorted(found, key=lambda step: step.slot))


def _form(reading: Reading, places: Allocation) -> tuple[tuple[int, float], ...]:
    return tuple((places.register[cell], float(c)) for cell, c in reading.terms.items())


def _what(line: Line, places: Allocation) -> str:
    work = line.work
    if isinstance(work, Head):
        average = next(a for a in work.averages if a.target is line.target)
        value, step = shown(average.value, places), str(work.claim["step"])
        scale = "" if average.scale == 1 else f"{number(average.scale)} "
        if step == "unary":
            column = average.column or {}
            power = f"^{column['power']}" if "power" in column else ""
            inner = " tau + ".join(column.get("inner", ()))
            tau = shown(work.queries[0], places)
            return f"{scale}{column.get('fn')}{power}({inner}), tau = {tau}"
        if step in ("attend", "exponential sum"):
            pairs = zip(work.queries, work.keys, strict=True)
            products = (f"({shown(q, places)})({shown(k, places)})" for q, k in pairs)
            return f"{scale}{step} {value}, score {' + '.join(products)}"
        tau = f" {work.claim['tau']}" if step == "gather" else ""
        return f"{scale}{step}{tau} {value}"
    if work.step == "sum":
        return " + ".join(_term(term, places) for term in work.terms)
    operands = ", ".join(shown(operand, places) for operand in work.operands)
    return f"{work.step}({operands})"


def _term(term: Term, places: Allocation) -> str:
    gate = "" if term.gate is None else f" where {_name(term.gate, places)} = 0"
    return f"{number(term.factor)} {term.kind}({shown(term.value, places)}){gate}"


def _name(cell: Cell, places: Allocation) -> str:
    return f"r{places.register[cell]}"


def shown(reading: Reading, places: Allocation) -> str:
    """An affine form over registers."""
    parts = [
        _name(cell, places) if c == 1 else f"{number(c)} {_name(cell, places)}"
        for cell, c in reading.terms.items()
    ]
    if reading.offset or not parts:
        parts.append(number(reading.offset))
    return " + ".join(parts).replace("+ -", "- ")


def number(value: Fraction) -> str:
    """A rational as it is where that is short, else to six digits.

    Example:
        >>> number(Fraction(-1, 3)), number(Fraction(0.1))
        ('-1/3', '0.1')
    """
    full = str(value)
    return full if len(full) <= SHORT else f"{float(value):.6g}"
