"""What is known of a constructed network besides its weights: how to read its insides."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from everyformer.errors import DomainError
from everyformer.papers import YUN2020


@dataclass(frozen=True)
class Ids:
    """The numbers by which a constructed network tells its tokens apart.

    Attributes:
        direction: u; the id of a token z (of its registers) is u^T z.
        low: Smallest id that the value map knows (t_l of Lemma 6 in Theorem 2).
        high: No id that the value map knows is as large (t_r of Lemma 6).
    """

    direction: tuple[int, ...]
    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class Construction:
    """The constants of a construction.

    Attributes:
        theorem: What was constructed: a theorem of the paper, or a word for it.
        target: Name of the function that was approximated.
        grid: K = 1/delta, cells per axis.
        lows: Lower end of the domain, one number per coordinate.
        highs: Upper end of the domain, one number per coordinate.
        ids: How to read the ids, where the network has them.
        ramp_width: Width of the quantiser's ramps in cells of the unit cube, 0 if there
            are no ramps.
        sharpness: lambda of Lemma 9, 0 for hardmax.
        reach: How many box widths outside the domain an input may lie (0: not at all).
        paper: Whose theorem it is.
    """

    theorem: str
    target: str
    grid: int
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    ids: Ids | None = None
    ramp_width: Fraction = Fraction(0)
    sharpness: Fraction = Fraction(0)
    reach: int = 0
    paper: str = "everyformer"

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
        msg = f"x{list(index)} = {float(x[index])!r} lies outside {box}: {why}. {cure}"
        raise DomainError(msg)

    def to_json(self, width: int) -> dict[str, Any]:
        """A JSON object; rationals are written as strings.

        Without the paper, if it is the one of files written before there were two. Files
        always state ids: for a network without ids the direction is 0.

        Args:
            width: Numbers in a token inside the blocks.
        """
        ids = self.ids or Ids((0,) * width, Fraction(0), Fraction(1))
        values: dict[str, Any] = {
            "theorem": self.theorem,
            "target": self.target,
            "grid": self.grid,
            "lows": self.lows,
            "highs": self.highs,
            "id_direction": ids.direction,
            "id_low": str(ids.low),
            "id_high": str(ids.high),
            "ramp_width": str(self.ramp_width),
            "sharpness": str(self.sharpness),
            "reach": self.reach,
        }
        return values if self.paper == YUN2020.key else values | {"paper": self.paper}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Construction":
        """The inverse of `to_json`."""
        direction = tuple(values["id_direction"])
        ids = Ids(direction, Fraction(values["id_low"]), Fraction(values["id_high"]))
        return cls(
            theorem=values["theorem"],
            target=values["target"],
            grid=values["grid"],
            lows=tuple(values["lows"]),
            highs=tuple(values["highs"]),
            ids=ids if any(direction) else None,
            ramp_width=Fraction(values["ramp_width"]),
            sharpness=Fraction(values["sharpness"]),
            reach=values["reach"],
            paper=values.get("paper", YUN2020.key),
        )
