"""When each head and unit runs.

Slot 2b is the attention half of block b, slot 2b + 1 its feed-forward half. All that runs
in one slot reads the state before it. A step runs in the first slot of its kind after all
that it reads. Heads with equal scores in one slot are one head.

max, min and exchange overwrite one of their operands. That operand must be one register,
and nobody may read its old value later; else a copy is overwritten: by two units where that
does not delay the step, by a head that gathers each token from itself otherwise.
"""

from dataclasses import dataclass, replace

from everyformer.construct.compile.lowering.constants import Constants
from everyformer.construct.compile.lowering.gadgets import (
    ONE,
    Average,
    Cell,
    Head,
    Reading,
    Term,
    Units,
    Work,
)
from everyformer.construct.compile.lowering.moves import gather_scores

FOREVER = 2**62
"""Slot in which outputs are read."""


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A head or units with the slot in which they run.

    Attributes:
        slot: The slot.
        work: What runs; of a max, min or exchange the first operand is overwritten.
    """

    slot: int
    work: Work

    @property
    def overwritten(self) -> Cell | None:
        """The cell whose register is changed in place, or None."""
        if isinstance(self.work, Head) or self.work.step == "sum":
            return None
        return self.work.operands[0].plain


@dataclass(frozen=True, eq=False)
class Schedule:
    """Heads and units by slot.

    Attributes:
        items: In order of slots.
        ends: The last slot that reads each cell; FOREVER for outputs.
        starts: The slot that writes each cell; -1 for inputs and constants.
    """

    items: list[Scheduled]
    ends: dict[Cell, int]
    starts: dict[Cell, int]

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return 1 + max((item.slot for item in self.items), default=-1) // 2

    def by_block(self) -> dict[int, list[Scheduled]]:
        """The items of each block that has some."""
        found: dict[int, list[Scheduled]] = {}
        for item in self.items:
            found.setdefault(item.slot // 2, []).append(item)
        return found


def schedule(works: list[Work], outputs: list[Reading], constants: Constants) -> Schedule:
    """Find slots, and copies where an old value is still read."""
    copied: dict[Work, int] = {}  # which operand is copied
    while True:
        items, starts = _place(works, copied, constants)
        ends = _last_reads(items, outputs)
        more = _choose_overwritten(items, ends, copied)
        if not more:
            ordered = sorted(items, key=lambda item: item.slot)
            return Schedule(_merged(ordered), ends, starts)
        copied |= more


def _first(slot: int, *, units: bool) -> int:
    return slot + (slot % 2 != int(units))


def _place(
    works: list[Work], copied: dict[Work, int], constants: Constants
) -> tuple[list[Scheduled], dict[Cell, int]]:
    starts: dict[Cell, int] = {}
    items: list[Scheduled] = []

    def ready(readings: list[Reading]) -> int:
        slots = [starts.get(cell, -1) for r in readings for cell in r.terms]
        return 1 + max(slots, default=-1)

    def add(work: Work, slot: int) -> None:
        items.append(Scheduled(slot, work))
        starts.update(dict.fromkeys(work.targets, slot))

    for work in works:
        current = work
        if isinstance(work, Units) and work in copied:
            which = copied[work]
            value = work.operands[which]
            other = ready(work.readings)
            by_units = _first(ready([value]), units=True)
            by_head = _first(ready([value]), units=False)
            late = _first(max(by_units + 1, other), units=True)
            soon = _first(max(by_head + 1, other), units=True)
            target = constants.work("copy", value.garbage)
            if late <= soon:
                add(Units("sum", target, (Term("copy", value),)), by_units)
            else:
                add(_copying_head(value, target, constants), by_head)
            rest = work.operands[1 - which]
            current = replace(work, operands=(Reading.of(target), rest))
        slot = _first(ready(current.readings), units=isinstance(current, Units))
        add(current, slot)
    return items, starts


def _copying_head(value: Reading, target: Cell, constants: Constants) -> Head:
    itself = list(range(constants.n))
    claim = {"step": "gather", "tau": itself}
    average = Average(constants.bare(value), ONE, target)
    return Head(claim, *gather_scores(constants, itself), [average])


def _last_reads(items: list[Scheduled], outputs: list[Reading]) -> dict[Cell, int]:
    ends: dict[Cell, int] = {}
    for item in items:
        for reading in item.work.readings:
            for cell in reading.terms:
                ends[cell] = max(ends.get(cell, -1), item.slot)
    for reading in outputs:
        ends |= dict.fromkeys(reading.terms, FOREVER)
    return ends


def _choose_overwritten(
    items: list[Scheduled], ends: dict[Cell, int], copied: dict[Work, int]
) -> dict[Work, int]:
    """Put the operand that can be overwritten first; else say which one to copy."""
    taken: dict[Cell, None] = {}
    more: dict[Work, int] = {}
    for item in items:
        work = item.work
        if isinstance(work, Head) or work.step == "sum":
            continue
        choices = (0,) if work.step == "exchange" else (0, 1)
        cells = [(work.operands[i].plain, i) for i in choices]
        free = [
            (cell.channel is not None, i, cell)
            for cell, i in cells
            if cell is not None
            and ends[cell] <= item.slot
            and cell not in taken
            and cell not in work.operands[1 - i].terms  # max(a, a + b): a copy of a
        ]
        if not free:
            more[work] = _easiest(work, choices)
            continue
        _, chosen, cell = min(free, key=lambda entry: entry[:2])
        taken[cell] = None
        if chosen:
            work.operands = (work.operands[1], work.operands[0])
    return more


def _easiest(work: Units, choices: tuple[int, ...]) -> int:
    """The operand to copy: not a constant, and the one that is known first."""

    def age(i: int) -> tuple[int, int]:
        cells = [c.index for c in work.operands[i].terms if not c.is_constant]
        return (max(cells, default=2**62), i)

    return min(choices, key=age)


def _merged(items: list[Scheduled]) -> list[Scheduled]:
    """Heads with equal scores in one slot as one head with several values."""
    kept: list[Scheduled] = []
    heads: dict[tuple[object, ...], Head] = {}
    for item in items:
        if isinstance(item.work, Head):
            key = (item.slot, *item.work.signature)
            if key in heads:
                heads[key].averages.extend(item.work.averages)
                continue
            own = replace(item.work, averages=list(item.work.averages))
            heads[key] = own
            kept.append(Scheduled(item.slot, own))
        else:
            kept.append(item)
    return kept
