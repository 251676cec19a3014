"""The pattern that the user names: by name and parameters, or in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everyformer.cli.loading import read_array
from everyformer.errors import FileFormatError, PatternError
from everyformer.patterns.by_name import GENERATORS, by_name
from everyformer.patterns.generators import cycle
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.user import from_edges, from_masks

DEFAULT_N = 16
MASKS = ".npy"
EDGES = (".txt", ".csv", ".edges")


def load_pattern(
    name: str,
    n: int | None,
    parameters: Sequence[str],
    *,
    seed: int = 0,
    zero_based: bool = False,
    self_loops: bool = False,
) -> Pattern:
    """The pattern of a name, of a file of masks or edges, or of several files in turn.

    Args:
        name: A name, or files separated by commas, a part of the cycle each.
        n: Number of tokens; 16 for a pattern by name.
        parameters: KEY=VALUE of a pattern by name.
        seed: For the patterns that draw.
        zero_based: Whether tokens in files and parameters are numbered from 0.
        self_loops: Whether edges to oneself are added to those of a file.

    Raises:
        PatternError: If there is no such pattern, or it cannot be.
        FileFormatError: If a file is not what it should be.
        FileNotFoundError: If there is no such file.
    """
    files = [Path(one) for one in name.split(",")]
    if not any(file.suffix in (MASKS, *EDGES) for file in files):
        n = DEFAULT_N if n is None and name != "axial" else n
        chosen = {} if n is None else {"n": n}
        chosen |= {"seed": seed} if name in ("random", "bigbird", "bigbird-blocks") else {}
        if self_loops:
            msg = f"--self-loops is for files of edges, but {name!r} is none. Leave it out."
            raise PatternError(msg)
        given = dict(_parameter(text, zero_based) for text in parameters)
        return by_name(name, **chosen, **given)
    if parameters:
        msg = f"--width and --with make a pattern by name, but {name} is read from files"
        raise PatternError(
            f"{msg}. Leave them out, or choose one of {', '.join(GENERATORS)}."
        )
    parts = [
        _masks(file, n) if file.suffix == MASKS else _edges(file, n, zero_based, self_loops)
        for file in files
    ]
    return cycle(*parts)


def _parameter(text: str, zero_based: bool) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip().replace("-", "_")
    try:
        if not (key and equals):
            raise ValueError(text)
        if value.lower() in ("true", "false"):
            return key, value.lower() == "true"
        numbers = tuple(int(one) for one in value.split(","))
    except ValueError as error:
        msg = f"--with {text}: write KEY=VALUE with a whole number, several with commas"
        raise PatternError(f"{msg} between, true or false.") from error
    if len(numbers) == 1:
        return key, numbers[0]
    if key == "global_tokens" and not zero_based:
        numbers = tuple(token - 1 for token in numbers)
    return key, numbers


def _masks(file: Path, n: int | None) -> Pattern:
    masks = read_array(file, "booleans")
    if masks.ndim not in (2, 3):
        msg = f"{file} has shape {masks.shape}: one mask (n, n) or several (p, n, n) are"
        raise FileFormatError(f"{msg} needed.")
    pattern = from_masks(masks, name=file.stem)
    if n is not None and n != pattern.n:
        msg = f"{file} has masks for {pattern.n} tokens, but --n is {n}. Leave --n out."
        raise PatternError(msg)
    return pattern


def _edges(file: Path, n: int | None, zero_based: bool, self_loops: bool) -> Pattern:
    edges: list[tuple[int, int]] = []
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        numbers = line.partition("#")[0].replace(",", " ").split()
        if not numbers:
            continue
        try:
            j, k = (int(number) for number in numbers)
        except ValueError as error:
            msg = (
                f"{file}, line {place}: {line.strip()!r} is no edge. Write two whole "
                "numbers j k: token k attends to token j; # begins a comment."
            )
            raise FileFormatError(msg) from error
        edges.append((j, k))
    first = 0 if zero_based else 1
    if n is None:
        most = max((max(edge) for edge in edges), default=first) + 1 - first
        msg = (
            f"{file} is a list of edges: give the number of tokens, for example --n {most}."
        )
        raise PatternError(msg)
    return from_edges(n, edges, self_loops=self_loops, first=first, name=file.stem)


def read_path(text: str, zero_based: bool) -> tuple[int, ...]:
    """gamma from numbers with commas or spaces between, or from a file of them; 0-based.

    Raises:
        PatternError: If these are no numbers.
    """
    file = Path(text)
    given = file.read_text(encoding="utf-8") if file.suffix == ".txt" else text
    try:
        numbers = [int(number) for number in given.replace(",", " ").split()]
    except ValueError as error:
        msg = f"--gamma {text}: write the tokens in order, such as 2,1,3, or a .txt file"
        raise PatternError(f"{msg} of them.") from error
    return tuple(number - (not zero_based) for number in numbers)
