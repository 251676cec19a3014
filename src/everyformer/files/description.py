"""The description of a network in its file: which keys there are, and of which type."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal, cast, get_args

from everyformer.numerics.rationals import parse_rational

MAX_SIZE = 2**20
"""Most tokens, and coordinates of a token, that a description may state."""

MAX_COUNT = 2**40
"""Most heads, hidden units, registers and prefix tokens."""

MAX_REACH = 2**1000
"""How far from 0 a domain may reach; `construct` builds up to there, itself included."""


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_SIZE


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _is_one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


def _is_rational(value: Any) -> bool:
    try:
        return isinstance(parse_rational(value), Fraction)
    except (ValueError, ZeroDivisionError):
        return False


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(kind(one) for one in value)


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_REACH


ARCHITECTURE: dict[str, Callable[[Any], bool]] = {
    "seq_len": _is_size,
    "d_model": _is_size,
    "num_heads": _is_count,
    "d_head": _is_count,
    "d_ff": _is_count,
    "normaliser": _is_one_of("softmax", "hardmax"),
    "activation": _is_one_of("relu", "piecewise-linear"),
    "positional": _is_truth,
}
MAYBE_IN_ARCHITECTURE: dict[str, Callable[[Any], bool]] = {
    "attention": _is_one_of("dense", "urpe"),
    "width": _is_count,
    "num_prefix": lambda value: type(value) is int and 0 <= value <= MAX_COUNT,
    "pattern": lambda value: isinstance(value, dict),
}
CONSTRUCTION: dict[str, Callable[[Any], bool]] = {
    "theorem": _is_text,
    "target": _is_text,
    "grid": lambda value: type(value) is int and 1 <= value < 2**62,
    "lows": _are(_is_finite),
    "highs": _are(_is_finite),
    "id_direction": _are(lambda value: type(value) is int and abs(value) < MAX_REACH),
    "id_low": _is_rational,
    "id_high": _is_rational,
    "ramp_width": _is_rational,
    "sharpness": _is_rational,
    "reach": lambda value: type(value) is int and 0 <= value < MAX_REACH,
}
PROGRAM: dict[str, Callable[[Any], bool]] = {
    "target": _is_text,
    "lows": _are(_is_finite),
    "highs": _are(_is_finite),
    "claims": lambda value: isinstance(value, dict),
    "listing": _are(_is_text),
}
STEP: dict[str, Callable[[Any], bool]] = {
    "slot": lambda value: type(value) is int and 0 <= value <= MAX_COUNT,
    "reads": _are(
        lambda pair: (
            isinstance(pair, list)
            and len(pair) == 2
            and type(pair[0]) is int
            and 0 <= pair[0] <= MAX_COUNT
            and _is_finite(pair[1])
        )
    ),
    "what": _is_text,
    "line": _is_text,
    **dict.fromkeys(("low", "high", "e", "r"), _is_finite),
}
MAYBE_IN_PROGRAM: dict[str, Callable[[Any], bool]] = {
    "steps": _are(
        lambda value: (
            isinstance(value, dict)
            and value.keys() == STEP.keys()
            and all(is_kind(value[key]) for key, is_kind in STEP.items())
        )
    ),
}


StageKind = Literal[
    "position layer",
    "read in",
    "out of range",
    "quantise",
    "selective shifts",
    "global shift",
    "lift",
    "chain shifts",
    "max shifts",
    "ids to codes",
    "value map",
    "average attention",
    "bi-linear projection",
    "separable convolution",
]
"""What a stage does, for programs; its name is for people. A hint, like all of these."""


def stage_entry(name: str, source: str, kind: StageKind | None) -> list[str | None]:
    """A stage as the description lists it: name, source and kind; see `kind_of`."""
    short = name if name in get_args(StageKind) else None
    return [name, source] if kind == short else [name, source, kind]


def kind_of(entry: list[str | None]) -> StageKind | None:
    """The kind of a listed stage. It is left out where it is the name.

    Example:
        >>> kind_of(["quantise", "Lemma 5"]), kind_of(["rounding", "Lemma 5", "quantise"])
        ('quantise', 'quantise')
        >>> kind_of(["quantise", "Lemma 5", None]), kind_of(["block 1", "here"])
        (None, None)
    """
    kind = entry[2] if len(entry) > 2 else entry[0]
    return cast(StageKind, kind) if kind in get_args(StageKind) else None


def _is_stage(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) not in (2, 3):
        return False
    kinds = (None, *get_args(StageKind))
    return all(map(_is_text, entry[:2])) and all(kind in kinds for kind in entry[2:])


NEEDED = ("version", "denominators", "architecture", "stages", "construction")


def check_description(description: Any) -> None:
    """Refuse a description whose values are not of the types that they must have.

    Raises:
        ValueError: Naming the first such value.
    """
    _check_keys("the description", description, {}, {}, needed=NEEDED)
    spec = description["architecture"]
    _check_keys("the architecture", spec, ARCHITECTURE, MAYBE_IN_ARCHITECTURE)
    if ("width" in spec) != ("num_prefix" in spec):
        msg = "the architecture states one of width and num_prefix, not both"
        raise ValueError(msg)
    stages = description["stages"]
    if not _are(_is_stage)(stages):
        msg = "the stages are not a list of texts, name and source, perhaps with a kind"
        raise ValueError(msg)
    construction = description["construction"]
    if construction is not None:
        paper = {"paper": _is_text}
        _check_keys("the construction", construction, CONSTRUCTION, paper)
    if description.get("program") is not None:
        _check_keys("the program", description["program"], PROGRAM, MAYBE_IN_PROGRAM)


def check_lengths(description: dict[str, Any]) -> None:
    """Refuse a construction or a program of tokens of another width.

    Raises:
        ValueError: With the lengths.
    """
    construction, spec = description["construction"], description["architecture"]
    d, program = spec["d_model"], description.get("program")
    if program is not None and not len(program["lows"]) == len(program["highs"]) == d:
        msg = f"the program has a domain of {len(program['lows'])} coordinates, not {d}"
        raise ValueError(msg)
    if construction is None:
        return
    lengths = {key: len(construction[key]) for key in ("lows", "highs", "id_direction")}
    expected = {"lows": d, "highs": d, "id_direction": spec.get("width", d)}
    if lengths != expected:
        msg = f"the construction has lists of lengths {lengths}, expected {expected}"
        raise ValueError(msg)


def _check_keys(
    what: str,
    values: Any,
    kinds: dict[str, Callable[[Any], bool]],
    optional: dict[str, Callable[[Any], bool]],
    needed: tuple[str, ...] = (),
) -> None:
    """Whether there are these keys, with values of these kinds."""
    if not isinstance(values, dict):
        msg = f"{what} is not a JSON object"
        raise TypeError(msg)
    required = (*kinds, *needed)
    missing = [key for key in required if key not in values]
    if missing:
        msg = f"{what} has no {', '.join(missing)}"
        raise ValueError(msg)
    if not needed and (unknown := sorted(set(values) - set(kinds) - set(optional))):
        msg = f"{what} has {', '.join(unknown)[:80]}, which is not known"
        raise ValueError(msg)
    for key, is_kind in (kinds | optional).items():
        if key in values and not is_kind(values[key]):
            msg = f"{what} states {key} = {str(values[key])[:80]}"
            raise ValueError(msg)
