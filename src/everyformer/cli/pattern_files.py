"""The pattern that the user names: by name and parameters, or in a file."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from everyformer.cli.loading import import_file, read_array
from everyformer.cli.names import check_pattern_name
from everyformer.errors import FileFormatError, PatternError
from everyformer.patterns.by_name import GENERATORS, by_name
from everyformer.patterns.generators import cycle
from everyformer.patterns.pattern import Pattern
from everyformer.patterns.user import from_edges, from_graph, from_masks

DEFAULT_N = 16
MASKS = ".npy"
EDGES = (".txt", ".csv", ".edges")
READING = ("self_loops", "zero_based")
"""Parameters that say how the tokens of a pattern are read; false unless given."""


def load_pattern(name: str, n: int | None, parameters: Mapping[str, Any]) -> Pattern:
    """The pattern of a name, of a file of masks or edges, or of several files in turn.

    Args:
        name: A name; file.py:attribute, a pattern, networkx graph or masks; or files
            separated by commas, a part of the cycle each.
        n: Number of tokens; 16 for a pattern by name.
        parameters: What `read_parameters` read: those of a pattern by name; `self_loops`,
            whether edges to oneself are added to those of a file; and `zero_based`, whether
            tokens in files and parameters are numbered from 0.

    Raises:
        PatternError: If there is no such pattern, or it cannot be.
        FileFormatError: If a file is not what it should be.
        FileNotFoundError: If there is no such file.
    """
    self_loops, zero_based = (bool(parameters.get(key)) for key in READING)
    own = {key: value for key, value in parameters.items() if key not in READING}
    source, colon, attribute = name.rpartition(":")
    files = [Path(one) for one in name.split(",")]
    from_python = bool(colon) and source.endswith(".py")
    if not from_python and not any(file.suffix in (MASKS, *EDGES) for file in files):
        if name not in GENERATORS:
            check_pattern_name(name)
        if self_loops:
            msg = f"self_loops=true is for files of edges. Leave it out with {name!r}."
            raise PatternError(msg)
        n = DEFAULT_N if n is None and name != "axial" else n
        sized = {} if n is None else {"n": n}
        return by_name(name, **sized, **_with_tokens_from_0(own, n, zero_based))
    if own:
        msg = f"{name} is read from files, but {', '.join(own)} makes a pattern by name"
        raise PatternError(
            f"{msg}. Leave it out, or choose one of {', '.join(GENERATORS)}."
        )
    if from_python:
        return _sized(_in_module(Path(source), attribute, self_loops), n, name)
    parts = [
        _masks(file, n) if file.suffix == MASKS else _edges(file, n, zero_based, self_loops)
        for file in files
    ]
    return cycle(*parts)


def read_parameters(texts: Sequence[str]) -> dict[str, Any]:
    """All KEY=VALUE of a pattern, each key once.

    Raises:
        PatternError: If one is not a parameter.
    """
    given: dict[str, Any] = {}
    for text in texts:
        key, value = _parameter(text)
        if key == "n":
            raise PatternError(f"--with {text}: use -n for that.")
        if key in READING and not isinstance(value, bool):
            raise PatternError(f"--with {text}: write true or false.")
        if key in given:
            msg = f"{key} is given twice, {given[key]} and {value}: which one is meant?"
            raise PatternError(f"{msg} Leave one out.")
        given[key] = value
    return given


def _parameter(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    key = key.strip().replace("-", "_")
    try:
        if not (key and equals):
            raise ValueError(text)
        if value.lower() in ("true", "false"):
            return key, value.lower() == "true"
        numbers = tuple(int(one) for one in value.removesuffix(",").split(","))
    except ValueError as error:
        msg = f"--with {text}: write KEY=VALUE with a whole number, several with commas"
        raise PatternError(f"{msg} between, true or false.") from error
    if len(numbers) == 1 and not value.endswith(","):
        return key, numbers[0]
    return key, numbers


def _with_tokens_from_0(
    parameters: Mapping[str, Any], n: int | None, zero_based: bool
) -> dict[str, Any]:
    """The parameters, where those that are tokens count from 0."""
    tokens = parameters.get("global_tokens")
    if not isinstance(tokens, tuple) or n is None:
        return dict(parameters)
    first = 0 if zero_based else 1
    wrong = [token for token in tokens if not first <= token < n + first]
    if wrong:
        msg = f"global_tokens names token {wrong[0]}, but with n={n} the tokens are"
        raise PatternError(f"{msg} {first}..{n - 1 + first} ({first}-based).")
    return {**parameters, "global_tokens": tuple(token - first for token in tokens)}


def _masks(file: Path, n: int | None) -> Pattern:
    masks = read_array(file, "booleans")
    if masks.ndim not in (2, 3):
        msg = f"{file} has shape {masks.shape}: one mask (n, n) or several (p, n, n) are"
        raise FileFormatError(f"{msg} needed.")
    try:
        pattern = from_masks(masks, name=file.stem)
    except PatternError as error:
        raise PatternError(f"{file}: {error}") from error
    return _sized(pattern, n, str(file))


def _sized(pattern: Pattern, n: int | None, name: str) -> Pattern:
    """The pattern, if it is for n tokens."""
    if n is not None and n != pattern.n:
        msg = f"{name} is for {pattern.n} tokens, not for n={n}. Give a pattern for {n}"
        raise PatternError(f"{msg}, or another number of tokens.")
    return pattern


def _in_module(file: Path, attribute: str, self_loops: bool) -> Pattern:
    """A pattern, networkx graph or masks in a file of the user's."""
    with redirect_stdout(sys.stderr):
        module = import_file(file)
    value: Any = getattr(module, attribute, None)
    if hasattr(value, "nodes") and hasattr(value, "edges"):
        return from_graph(value, self_loops=self_loops, name=attribute)
    if hasattr(value, "shape") and not self_loops:
        return from_masks(value, name=attribute)
    if isinstance(value, Pattern) and not self_loops:
        return value
    msg = f"{file}:{attribute} is of type {type(value).__name__}"
    if self_loops:
        raise PatternError(f"{msg}, and self_loops=true is for edges and graphs.")
    msg += ", not a pattern of everyformer.patterns, a networkx graph or boolean masks"
    raise PatternError(f"{msg} (n, n) or (p, n, n). Name one of these.")


def _edges(file: Path, n: int | None, zero_based: bool, self_loops: bool) -> Pattern:
    edges: list[tuple[int, int]] = []
    for place, line in enumerate(_text(file).splitlines(), start=1):
        numbers = line.partition("#")[0].replace(",", " ").split()
        if not numbers:
            continue
        try:
            j, k = (int(number) for number in numbers)
        except ValueError as error:
            msg = (
                f"{file}, line {place}: {line.strip()!r} is not an edge. Write two whole "
                "numbers j k: token k attends to token j; # begins a comment."
            )
            raise FileFormatError(msg) from error
        edges.append((j, k))
    first = 0 if zero_based else 1
    if n is None and edges:
        most = max(max(edge) for edge in edges) + 1 - first
        msg = (
            f"{file} is a list of edges: give the number of tokens, for example -n {most}."
        )
        raise PatternError(msg)
    return from_edges(
        1 if n is None else n, edges, self_loops=self_loops, first=first, name=file.stem
    )


def _text(file: Path) -> str:
    """What a text file says; spreadsheets put a mark of the order of bytes before it."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{file} is not text in UTF-8 ({error}). Save it as plain text."
        raise FileFormatError(msg) from error


def read_path(text: str, zero_based: bool, option: str = "--gamma ") -> tuple[int, ...]:
    """gamma from numbers with commas or spaces between, or from a file of them; 0-based.

    Raises:
        PatternError: If these are not numbers.
        FileFormatError: If the file is not text.
    """
    file = Path(text)
    given = _text(file) if file.suffix == ".txt" else text
    try:
        numbers = [int(number) for number in given.replace(",", " ").split()]
    except ValueError as error:
        msg = f"{option}{text}: write the tokens in order, such as 2,1,3, or a .txt file"
        raise PatternError(f"{msg} of them.") from error
    return tuple(number - (not zero_based) for number in numbers)
