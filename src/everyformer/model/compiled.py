"""What a compiled network says of itself: which program each head and unit computes."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from everyformer.errors import DomainError


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
    """

    target: str
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    claims: dict[str, Any]
    listing: tuple[str, ...] = ()

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
            f"x{list(index)} = {x[index]!r} lies outside [{self.lows[i]:g}, "
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
            tuple(values["listing"]),
        )
