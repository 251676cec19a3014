"""What went wrong in a user's function, or was given in its place; and what to write."""

import sysconfig
import traceback
from pathlib import Path
from typing import Any

from everyformer.errors import TargetError, printable

PACKAGE = Path(__file__).resolve().parents[1]
INSTALLED = tuple(Path(path).resolve() for path in sysconfig.get_paths().values())
"""Where Python and packages lie: not what the user wrote."""

LONGEST_LINE = 80
"""Signs of a line that are shown."""

SHAPES = (
    "A target takes (batch, n, d) and works on all sequences of the batch at once: tokens "
    "are axis -2, coordinates axis -1."
)

ADVICE = (
    (
        ("torch", "Tensor"),
        "It is given numpy arrays. Write it with numpy, or convert inside it: "
        "lambda x: f(torch.from_numpy(x)).detach().numpy(), and declare lipschitz=.",
    ),
    (
        ("converted to Python scalar", "0-dimensional arrays can be converted"),
        "It takes single numbers, as functions of `math` do. Use numpy's, such as np.sin "
        "for math.sin, which take arrays.",
    ),
    (
        ("truth value of an array",),
        "`if` and `and` ask about a whole array. Choose entry by entry: "
        "np.where(condition, a, b).",
    ),
    (
        ("positional argument",),
        "A target is a function of one array, x. Fix the others: lambda x: f(x, 2).",
    ),
)
"""Words of an error, and what to write instead."""


def described(error: BaseException) -> str:
    """An error in words, with the line of the user's file that raised it."""
    text = str(error).rstrip(".")
    kind = type(error).__name__
    return f"{kind}: {text}{_place(error)}" if text else f"{kind}{_place(error)}"


def _place(error: BaseException) -> str:
    """The deepest line of the traceback that is neither ours nor a package's; or ""."""
    if isinstance(error, SyntaxError):
        return ""  # its own words name file and line
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _installed(frame.filename)]
    if not theirs:
        return ""
    frame = theirs[-1]
    line = (frame.line or "").strip()
    line = line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 3]}..."
    shown = f"{_short(frame.filename)}, line {frame.lineno}"
    return printable(f" ({shown}: {line})" if line else f" ({shown})")


def _installed(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    path = Path(filename)
    if not path.is_absolute():
        return False
    return any(path.is_relative_to(folder) for folder in (PACKAGE, *INSTALLED))


def _short(filename: str) -> str:
    """The name relative to the folder the user is in, if it lies there."""
    path, here = Path(filename), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def advice(error: BaseException) -> str:
    """What to write instead, where the error is a common one; what a target is."""
    words = f"{type(error).__module__} {error}"
    for signs, said in ADVICE:
        if any(sign in words for sign in signs):
            return said
    return SHAPES


def not_a_target(given: Any) -> TargetError:
    """What was given instead of a target, and what to write."""
    if isinstance(given, str):
        said = (
            "is text. Names of the gallery are for the shell; in Python write "
            "ef.targets.sort(n, d), or ef.Target(f, seq_len=n, d_model=d) for a function f "
            "of your own"
        )
    elif isinstance(given, type):
        said = f"is a class. Make one: ef.{given.__name__}(f, seq_len=n, d_model=d)"
    elif getattr(given, "__module__", None) == "everyformer.targets.gallery":
        said = f"makes targets. Call it: ef.targets.{given.__name__}(n, d)"
    elif callable(given):
        said = (
            "is a function, and nobody knows for how many tokens. Write "
            "ef.Target(f, seq_len=n, d_model=d) for f that maps arrays (batch, n, d) to "
            "arrays of that shape, written with numpy"
        )
    else:
        said = "is not a function. Write ef.Target(f, seq_len=n, d_model=d)"
    shown = printable(repr(given))
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return TargetError(f"{shown} is not an everyformer.Target: it {said}.")
