"""Which register each cell lives in.

A cell is kept from the slot that writes it to the last slot that reads it; outputs are
kept for ever. A max, min or exchange hands its register on. A register whose cell is dead
can be cleared by two units, from the feed-forward half of the block of its last use on, and
is then empty for another cell. Reuse costs units, more registers cost columns everywhere:
both are counted, and the smaller network is taken.
"""

from dataclasses import dataclass

from everyformer.construct.compile.lowering.gadgets import Cell, Head, Reading
from everyformer.construct.compile.lowering.schedule import FOREVER, Schedule


@dataclass(frozen=True)
class BlockSize:
    """Numbers of heads, of components of a head and of hidden units of one block."""

    heads: int
    components: int
    units: int

    def parameters(self, width: int) -> int:
        """Numbers stored for the block."""
        attention = self.heads * self.components * (4 * width + 1)
        feed_forward = self.units * (2 * width + 1) + width if self.units else 0
        return attention + feed_forward


@dataclass(frozen=True)
class Allocation:
    """Registers.

    Attributes:
        register: The register of each cell that is used.
        width: The number of registers.
        clears: (slot, register) of all clears.
    """

    register: dict[Cell, int]
    width: int
    clears: list[tuple[int, int]]


def allocate(
    schedule: Schedule, outputs: list[Reading], sizes: tuple[int, int, int]
) -> Allocation:
    """The smaller of the networks with and without reuse of registers.

    Args:
        schedule: What runs when.
        outputs: What the result reads.
        sizes: n, d and the number P of prefix tokens.
    """
    choices = [_allocate(schedule, outputs, reuse=reuse) for reuse in (True, False)]
    return min(choices, key=lambda choice: parameters(schedule, choice, sizes))


def block_sizes(schedule: Schedule, allocation: Allocation) -> list[BlockSize]:
    """The sizes of all blocks."""
    sizes: list[BlockSize] = []
    items_of = schedule.by_block()
    for block in range(schedule.blocks):
        items = items_of.get(block, [])
        heads = [item.work for item in items if isinstance(item.work, Head)]
        units = sum(
            len(item.work.rows) for item in items if not isinstance(item.work, Head)
        )
        units += 2 * sum(slot == 2 * block + 1 for slot, _ in allocation.clears)
        m = max((max(len(h.queries), len(h.averages)) for h in heads), default=0)
        sizes.append(BlockSize(len(heads), m, units))
    return sizes


def parameters(
    schedule: Schedule, allocation: Allocation, sizes: tuple[int, int, int]
) -> int:
    """Numbers stored for the whole network."""
    n, d, P = sizes
    w = allocation.width
    blocks = block_sizes(schedule, allocation)
    return (n + 2 * d + P) * w + sum(block.parameters(w) for block in blocks)


def _allocate(schedule: Schedule, outputs: list[Reading], *, reuse: bool) -> Allocation:
    cells = _used(schedule, outputs)
    register: dict[Cell, int] = {}
    clears: list[tuple[int, int]] = []
    inputs = [c for c in cells if c.channel is not None]
    inputs.sort(key=lambda cell: cell.channel or 0)
    fixed = [*inputs, *(c for c in cells if c.is_constant)]
    for cell in fixed:
        register[cell] = len(register)
    chains = _chains(schedule, cells)
    starts, ends = schedule.starts, schedule.ends
    free: list[tuple[int, int]] = []  # (last read, register)
    width = len(register)

    def finish(chain: list[Cell]) -> None:
        end = max(ends.get(cell, starts.get(cell, -1)) for cell in chain)
        if end < FOREVER:
            free.append((end, register[chain[0]]))

    busy = {item.slot: None for item in schedule.items if not isinstance(item.work, Head)}
    for chain in chains:
        first = chain[0]
        if first.is_work:
            start = starts[first]
            places = (
                (end, r, _clear_slot(end, start, busy))
                for end, r in (sorted(free) if reuse else ())
            )
            usable = next(((e, r, c) for e, r, c in places if c is not None), None)
            if usable is not None:
                end, r, slot = usable
                free.remove((end, r))
                clears.append((slot, r))
                busy[slot] = None
                register[first] = r
            else:
                register[first] = width
                width += 1
        for cell in chain:
            register[cell] = register[first]
        finish(chain)
    return Allocation(register, max(width, 1), sorted(clears))


def _clear_slot(end: int, start: int, busy: dict[int, None]) -> int | None:
    """A feed-forward half, from the last read on and before the next write."""
    slots = range(end + (end % 2 == 0), start, 2)
    return next((slot for slot in slots if slot in busy), slots[0] if slots else None)


def _used(schedule: Schedule, outputs: list[Reading]) -> list[Cell]:
    found: dict[Cell, None] = {}
    for item in schedule.items:
        for reading in item.work.readings:
            found |= dict.fromkeys(reading.terms)
        found |= dict.fromkeys(item.work.targets)
    for reading in outputs:
        found |= dict.fromkeys(reading.terms)
    return sorted(found, key=lambda cell: cell.index)


def _chains(schedule: Schedule, cells: list[Cell]) -> list[list[Cell]]:
    """Cells that share a register because one is changed into the next, in place."""
    after = {
        item.overwritten: item.work.targets[0]
        for item in schedule.items
        if item.overwritten is not None
    }
    inside = dict.fromkeys(after.values())
    chains: list[list[Cell]] = []
    for cell in cells:
        if cell in inside or cell.is_constant:
            continue
        chain = [cell]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        chains.append(chain)
    return sorted(chains, key=lambda c: (schedule.starts.get(c[0], -1), c[0].index))
