"""What a rule says of a subject."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everyformer.errors import FileFormatError
from everyformer.verdict import Verdict

MAX_SEED = 2**32
Kind = Literal["obstacle", "condition", "measure"]
"""Where an obstacle is PROVED, a layer is not universal; where the conditions of a theorem
are, it may be; a measure is neither."""

How = Literal["structure", "operations", "counterexample", "pattern", "nothing"]


def apart(k: int, j: int) -> str:
    """In words, that a token k never hears a token j, both 0-based."""
    return f"token {k + 1} never hears token {j + 1} (1-based), whatever the depth"


@dataclass(frozen=True)
class Counterexample:
    """An input on which a property fails, and the weights it fails with.

    Attributes:
        code: The rule.
        input: X, shape (n, d).
        seed: What the weights were drawn from; None for those the module came with.
        violation_sampled: By how much it fails, as measured in float64.
    """

    code: str
    input: np.ndarray
    seed: int | None
    violation_sampled: float

    def save(self, folder: Path, subject: str) -> Path:
        """Write X as CODE.npy, and beside it what is needed to run it again."""
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"{self.code}.npy"
        np.save(place, self.input)
        note = {
            "code": self.code,
            "subject": subject,
            "seed": self.seed,
            "violation_sampled": self.violation_sampled,
        }
        place.with_suffix(".json").write_text(json.dumps(note, indent=2) + "\n")
        return place

    @classmethod
    def load(cls, place: Path) -> "Counterexample":
        """Read what `save` wrote.

        Raises:
            FileFormatError: If the files are not what `save` writes.
        """
        try:
            X = np.load(place, allow_pickle=False)
            note = json.loads(place.with_suffix(".json").read_text())
            seed = note["seed"]
            if X.dtype.kind not in "fiu" or X.ndim != 2 or not np.isfinite(X).all():
                raise ValueError(f"the input has shape {X.shape}")
            if isinstance(seed, bool) or not isinstance(seed, int | None):
                raise ValueError(f"the seed is {seed!r}")
            if seed is not None and not 0 <= seed < MAX_SEED:
                raise ValueError(f"the seed is {seed!r}")
            return cls(str(note["code"]), X, seed, float(note["violation_sampled"]))
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            EOFError,
            RecursionError,
        ) as error:
            msg = (
                f"{place} is not a counterexample ({error}). Give the .npy file that "
                "`check -o` wrote, with its .json file beside it."
            )
            raise FileFormatError(msg) from error


@dataclass(frozen=True)
class Finding:
    """The verdict of one rule.

    Attributes:
        code: The rule's code.
        name: Its name.
        verdict: Whether the property holds for all weights and inputs.
        how: What the verdict rests on.
        reason: In words.
        source: The theorem or the definition.
        violation_sampled: The largest violation seen, if one was looked for.
        counterexample: An input on which the property fails.
        contradicts: What says that the property holds, although it fails.
        pair: For PROVED: tokens (k, j), 0-based, that show it.
        kind: What the property has to do with universality.
        nearly: For UNKNOWN: the one thing that keeps it from being PROVED.
    """

    code: str
    name: str
    verdict: Verdict
    how: How
    reason: str
    source: str
    violation_sampled: float | None = None
    counterexample: Counterexample | None = None
    contradicts: How | None = None
    pair: tuple[int, int] | None = None
    kind: Kind = "measure"
    nearly: str = ""

    @property
    def good(self) -> bool | None:
        """Whether this is good news for universality, bad news, or neither.

        A condition that is REFUTED is neither: only its theorem does not apply.
        """
        if self.kind == "obstacle" and self.verdict is not Verdict.UNKNOWN:
            return self.verdict is Verdict.REFUTED
        proved = self.kind == "condition" and self.verdict is Verdict.PROVED
        return True if proved else None

    @property
    def news(self) -> str:
        """The same in a word."""
        return {True: "good", False: "bad", None: ""}[self.good]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        example = self.counterexample
        shown = None
        if example is not None:
            shown = {"input": example.input.tolist(), "seed": example.seed}
        return {
            "code": self.code,
            "name": self.name,
            "kind": self.kind,
            "verdict": str(self.verdict),
            "how": self.how,
            "reason": self.reason,
            "source": self.source,
            "violation_sampled": self.violation_sampled,
            "counterexample": shown,
        }
