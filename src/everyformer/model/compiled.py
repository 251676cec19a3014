"""What a compiled network says of itself: which program each head and unit computes."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from everyformer.errors import DomainError, printable


@dataclass(frozen=True)
class ProgramStep:
    """What one register, or a form of several, holds after a slot.

    Attributes:
        slot: 2 b for the attention half of block b, 2 b + 1 for its feed-forward half.
        reads: Registers, with coefficients; most are one register.
        what: What it computes of the registers before.
        line: The line of the user's program that it belongs to.
        low: The lower end of its ideal values; above `high` if nothing is known.
        high: The upper end.
        e: How far the network is from the ideal value in real arithmetic, at most.
        r: How much farther float64 may be.
    """

    slot: int
    reads: tuple[tuple[int, float], ...]
    what: str
    line: str
    low: float = 1.0
    high: float = 0.0
    e: float = 0.0
    r: float = 0.0

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ProgramStep":
        """The inverse of `asdict`; words are a file's own, and lose what is not text."""
        return cls(
            values["slot"],
            tuple((k, float(c)) for k, c in values["reads"]),
            printable(values["what"]),
            printable(values["line"]),
            *(float(values[name]) for name in ("low", "high", "e", "r")),
        )


@dataclass(frozen=True)
class CompiledProgram:
    """The program of a network that computes a function step by step.

    Attributes:
        target: Name of the function.
        lows: Lower end of the domain, one number per coordinate.
        highs: Upper end of the domain.
        claims: What each head and each unit computes, as JSON; the verifier checks it
            against the weights (docs/constructions/compile.md).
        listing: The program for people, a line for each step.
        steps: What registers hold, for `Network.trace`.
    """

    target: str
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    claims: dict[str, Any]
    listing: tuple[str, ...] = ()
    steps: tuple[ProgramStep, ...] = ()

    def check_input(self, x: np.ndarray) -> None:
        """Refuse inputs about which nothing is proved.

        Raises:
            DomainError: Naming the first such entry.
        """
        outside = (x < np.asarray(self.lows)) | (x > np.asarray(self.highs))
        if not outside.any():
            return
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        i = index[-1]
        msg = (
            f"x{list(index)} = {float(x[index])!r} lies outside [{self.lows[i]:g}, "
            f"{self.highs[i]:g}]: a compiled program is proved on its domain alone. Clip "
            "the input, or construct on a larger domain."
        )
        raise DomainError(msg)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "CompiledProgram":
        """The inverse of `to_json`."""
        return cls(
            values["target"],
            tuple(values["lows"]),
            tuple(values["highs"]),
            values["claims"],
            tuple(map(printable, values["listing"])),
            tuple(map(ProgramStep.from_json, values.get("steps", ()))),
        )
