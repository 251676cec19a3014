"""What everyformer refuses, as a tree of exceptions.

    EveryformerError
    ├── TargetError          the function given cannot be used as a target
    ├── GridError            the grid cannot work (not an integer, ids beyond float64)
    ├── PatternError         a sparse attention pattern is not one, or cannot do this
    ├── MemoryLimitError     the network would need more memory than allowed
    ├── InputError           an array has the wrong shape or holds no finite real numbers,
    │                        or a limit is not a number
    ├── DomainError          an input lies where the theorem says nothing
    ├── NumberKindError      these weights cannot be run or stored in this kind of number
    ├── FileFormatError      a file is not what it should be
    ├── ExpressionError      a program is not made of the operations that are allowed
    ├── CertificateError     a certificate cannot be made or read
    │   └── WorkLimitError   a file would take more work or memory than allowed
    ├── TrainingError        a run cannot be trained or resumed with these settings
    └── ToleranceError       no grid that can be built meets the tolerance

Every message has three parts: what was given, why it cannot work, what to do. All of them
are also a `ValueError`, so that callers who know nothing of this tree can catch them.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class EveryformerError(ValueError):
    """Anything that everyformer refuses."""


class TargetError(EveryformerError):
    """The function given cannot be used as a target."""


class GridError(EveryformerError):
    """The grid cannot work."""


class PatternError(EveryformerError):
    """A sparse attention pattern is not one, or cannot do what was asked."""


class MemoryLimitError(EveryformerError):
    """The network would need more memory than allowed."""


class InputError(EveryformerError):
    """An array has a wrong shape or holds what is not finite; a limit is not a number."""


class DomainError(EveryformerError):
    """An input lies where the theorem says nothing."""


class NumberKindError(EveryformerError):
    """These weights cannot be run or stored in this kind of number."""


class FileFormatError(EveryformerError):
    """A file is not what it should be."""


class ExpressionError(EveryformerError):
    """A function is not made of the operations that an expression may use."""


class CertificateError(EveryformerError):
    """A certificate cannot be made or read."""


class WorkLimitError(CertificateError):
    """Reading a file, or checking what it claims, would take more than was allowed."""


class ToleranceError(EveryformerError):
    """No grid that can be built meets the tolerance."""


class TrainingError(EveryformerError):
    """A run cannot be trained or resumed with these settings."""


def refuse(what: str, wrong: Sequence[str], error: type[Exception] = InputError) -> None:
    """Raise an error with all reasons at once; nothing happens without reasons.

    Example:
        >>> refuse("The layer cannot run", ["d=0 is empty", "n=0 is empty"])
        Traceback (most recent call last):
        everyformer.errors.InputError: The layer cannot run: d=0 is empty; n=0 is empty.
    """
    if wrong:
        raise error(f"{what}: {'; '.join(wrong)}.")


def printable(words: str) -> str:
    """Words of a user or a file on one line, with nothing that moves a cursor."""
    return "".join(c if c.isprintable() else "?" for c in words)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """A sentence that names what was probably meant; "" if nothing is near.

    Example:
        >>> did_you_mean("averageing", ["averaging", "urpe"]), did_you_mean("x", ["urpe"])
        (" Did you mean 'averaging'?", '')
    """
    near = get_close_matches(given, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
