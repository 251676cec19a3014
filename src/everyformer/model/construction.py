"""What is known of a constructed network besides its weights: how to read its insides."""

from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.errors import DomainError
from everyformer.papers import YUN2020


@dataclass(frozen=True)
class Construction:
    """The constants of a construction.

    Attributes:
        theorem: What was constructed: a theorem of the paper, or a word for it.
        target: Name of the function that was approximated.
        grid: K = 1/delta, cells per axis.
        lows: Lower end of the domain, one number per coordinate.
        highs: Upper end of the domain, one number per coordinate.
        id_direction: u; the id of a token z (of its registers) is u^T z.
        id_low: Smallest id that the value map knows (t_l of Lemma 6 in Theorem 2).
        id_high: No id that the value map knows is as large (t_r of Lemma 6).
        ramp_width: Width of the quantiser's ramps in cells of the unit cube, 0 if none.
        sharpness: lambda of Lemma 9, 0 for hardmax.
        reach: How many box widths outside the domain an input may lie (0: not at all).
        paper: Whose theorem it is.
    """

    theorem: str
    target: str
    grid: int
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    id_direction: tuple[int, ...]
    id_low: Fraction
    id_high: Fraction
    ramp_width: Fraction
    sharpness: Fraction
    reach: int
    paper: str = YUN2020.key

    def check_input(self, x: np.ndarray) -> None:
        """Refuse inputs about which the theorem, or float64, says nothing.

        Raises:
            DomainError: Naming the first such entry.
        """
        low, high = np.asarray(self.lows), np.asarray(self.highs)
        slack = self.reach * (high - low)
        outside = (x < low - slack) | (x > high + slack)
        if not outside.any():
            return
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        box = " x ".join(
            f"[{a:g}, {b:g}]" for a, b in zip(self.lows, self.highs, strict=True)
        )
        if self.reach == 0:
            known = "approximates on the domain alone and says nothing beyond it"
            made = self.theorem if self.theorem.startswith("Theorem") else "the network"
            why = f"{made} {known}"
            cure = f"Clip the input to {box}, or construct on a larger domain."
        else:
            why = (
                f"in float64 the network is known to vanish outside the box only up to "
                f"{self.reach} box widths away"
            )
            cure = "Use 0 there, or construct on a larger domain."
        msg = f"x{list(index)} = {x[index]!r} lies outside {box}: {why}. {cure}"
        raise DomainError(msg)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; rationals are written as strings.

        Without the paper, if it is the one of files written before there were two.
        """
        values = asdict(self)
        if self.paper == YUN2020.key:
            del values["paper"]
        return {
            name: str(value) if isinstance(value, Fraction) else value
            for name, value in values.items()
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Construction":
        """The inverse of `to_json`."""
        read: dict[str, Any] = {}
        for field in fields(cls):
            if field.name == "paper" and "paper" not in values:
                continue
            value = values[field.name]
            if field.type is Fraction:
                value = Fraction(value)
            elif isinstance(value, list):
                value = tuple(value)
            read[field.name] = value
        return cls(**read)
