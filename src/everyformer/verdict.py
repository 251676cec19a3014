"""The three answers a check can give."""

from enum import Enum


class Verdict(Enum):
    """PROVED, REFUTED (with a counterexample) or UNKNOWN; never a bool."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"

    def __str__(self) -> str:
        return self.value

    @property
    def exit_code(self) -> int:
        """What a command that gives this verdict ends with; 2 stands for none."""
        return {"PROVED": 0, "REFUTED": 1, "UNKNOWN": 3}[self.value]

    def __bool__(self) -> bool:
        """Refuse: UNKNOWN is neither true nor false."""
        msg = (
            f"{self.value} is a verdict, not a bool. Compare it: verdict is Verdict.PROVED."
        )
        raise TypeError(msg)
