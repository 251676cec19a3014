"""How much a program takes to run with its derivatives, from its lines alone."""

from dataclasses import dataclass

from everyformer.numerics.expression import Expression


@dataclass(frozen=True)
class ProgramSize:
    """How large a program is when it runs with its derivatives.

    Attributes:
        lines: How many.
        slopes: Numbers of all lines with their slopes, at most.
        alive: The most of these that are needed at the same time.
    """

    lines: int
    slopes: int
    alive: int

    @classmethod
    def of(cls, f: Expression) -> "ProgramSize":
        """The sizes of a program: a line uses at most the entries its operands use."""
        most = f.seq_len * f.d_model
        used: list[int] = []
        for node in f.nodes:
            if node.op == "x":
                used.append(1)
            else:
                used.append(min(most, sum(used[k] for k in node.operands)))
        freed: dict[int, int] = {}
        for number, entries in zip(f.last_reader, used, strict=True):
            freed[number] = freed.get(number, 0) + 1 + entries
        held = alive = 0
        for number, entries in enumerate(used):
            held += 1 + entries
            alive = max(alive, held)
            held -= freed.get(number, 0)
            held -= 1 + entries if f.last_reader[number] < 0 else 0
        return cls(len(f.nodes), len(f.nodes) + sum(used), alive)
