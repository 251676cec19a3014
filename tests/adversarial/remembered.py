"""What the verifier and the judge said of a case: a liar changes it, and asks no more."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import everyformer as ef

Change = Callable[[ef.Verification], ef.Verification]


class Remembered:
    """Verdicts by the bytes of a folder; distances by these and the state of the generator.

    A case of a number is tampered with in the same way each time, and measured at the same
    points: what it gives once, it gives again.
    """

    def __init__(self, judge: Callable[..., Any]) -> None:
        self.verdicts: dict[str, ef.Verification] = {}
        self.distances: dict[tuple[str, str], Any] = {}
        self.honest, self.judge, self.last = ef.verify, judge, ""

    def verify(self, folder: Path) -> ef.Verification:
        digest = sha256()
        for path in sorted(folder.iterdir()):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        self.last = digest.hexdigest()
        if self.last not in self.verdicts:
            self.verdicts[self.last] = self.honest(folder)
        return self.verdicts[self.last]

    def measure(self, *given: Any) -> Any:
        """Of the folder that was verified last; the generator is given last."""
        key = self.last, str(given[-1].bit_generator.state)
        if key not in self.distances:
            self.distances[key] = self.judge(*given)
        return self.distances[key]

    def lying(self, change: Change) -> Callable[[Path], ef.Verification]:
        return lambda folder: change(self.verify(folder))
