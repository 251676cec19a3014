"""The methods with their settings, and a method from its name and settings."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from fractions import Fraction
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich.table import Table
from rich.text import Text

from everyformer.cli.names import check_method
from everyformer.cli.pattern_files import load_pattern, read_parameters, read_path
from everyformer.construct.method import Method
from everyformer.construct.registry import DEFAULT, METHODS
from everyformer.patterns.pattern import Pattern


def methods_table() -> Table:
    """The methods, each with its settings."""
    title = "Methods (--method NAME) and their settings (--with KEY=VALUE)"
    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    shown.show_header, shown.padding = False, (0, 2, 0, 0)
    shown.add_column(no_wrap=True)
    shown.add_column()
    for name, kind in METHODS.items():
        mark = " (default)" if name == DEFAULT else ""
        first = (kind.__doc__ or "").splitlines()[0]
        shown.add_row(f"{name}{mark}", Text(first))
        types_of = get_type_hints(kind)
        for one in _settings(kind):
            given = f"  {one.name}={_written(types_of[one.name])}"
            shown.add_row(given, Text(one.metadata["help"] + _default(one)))
    return shown


def _written(kind: Any) -> str:
    """How a value of a type is written, in few words."""
    options = _options(kind)
    if get_origin(options[0]) is Literal:
        return "|".join(get_args(options[0]))
    names = {bool: "true|false", Pattern: "NAME", Sequence[int]: "TOKENS"}
    return names.get(options[0], "NUMBER" if Fraction in options else "INTEGER")


def _default(one: "Field[Any]") -> str:
    """What holds if a setting is not given, unless its help says so."""
    if one.default is MISSING:
        return " [needed]"
    return "" if one.default is None else f" [default: {str(one.default).lower()}]"


def _settings(kind: type[Any]) -> list["Field[Any]"]:
    """The fields that a user may set: those with a help text."""
    return [one for one in fields(kind) if "help" in one.metadata]


def read_method(name: str | None, given: Sequence[str] | None, seq_len: int) -> Method:
    """The method of a name, with settings KEY=VALUE.

    Where a setting is a pattern, the keys of no setting are the pattern's parameters.

    Args:
        name: A name of the registry; None for the default method.
        given: The settings; None for none.
        seq_len: Number of tokens, for patterns.

    Raises:
        typer.BadParameter: If there is no such method or setting, or a value is wrong.
        PatternError: If there is no such pattern.
    """
    check_method(name)
    name = DEFAULT if name is None else name
    kind = METHODS[name]
    known = {one.name: one for one in _settings(kind)}
    types_of = get_type_hints(kind)
    texts = _split(given or ())
    settings = {key: text for key, text in texts.items() if key in known}
    rest = {key: text for key, text in texts.items() if key not in known}
    missing = [key for key, one in known.items() if one.default is MISSING]
    missing = [key for key in missing if key not in settings]
    if missing:
        msg = f"--method {name} needs --with {missing[0]}=...: see `everyformer methods`."
        raise typer.BadParameter(msg)
    if rest and Pattern not in (types_of[key] for key in settings):
        has = f"It has {', '.join(known)}" if known else "It has no settings"
        msg = f"--with {next(iter(rest))}=...: method {name} has no such setting. {has}."
        raise typer.BadParameter(msg)
    parameters = read_parameters([f"{key}={text}" for key, text in rest.items()])
    values = {
        key: _value(key, text, types_of[key], seq_len, parameters)
        for key, text in settings.items()
    }
    return kind(**values)


def _split(given: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not (key and equals and value):
            msg = f"--with {text}: write KEY=VALUE, such as variant=narrow."
            raise typer.BadParameter(msg)
        if key in texts:
            msg = f"--with {key} is given twice, {texts[key]} and {value}. Leave one out."
            raise typer.BadParameter(msg)
        texts[key] = value
    return texts


def _value(
    key: str, text: str, kind: Any, seq_len: int, parameters: Mapping[str, Any]
) -> Any:
    """A setting as its type has it."""
    options = _options(kind)
    if options == [Pattern]:
        sized = None if text == "axial" else seq_len  # it has rows and columns instead
        return load_pattern(text, sized, parameters)
    if options == [Sequence[int]]:
        zero_based = bool(parameters.get("zero_based"))
        return read_path(text, zero_based=zero_based, option=f"--with {key}=")
    if get_origin(options[0]) is Literal:
        names = get_args(options[0])
        if text not in names:
            msg = f"--with {key}={text}: choose one of {', '.join(names)}."
            raise typer.BadParameter(msg)
        return text
    if options == [bool]:
        if text.lower() not in ("true", "false"):
            raise typer.BadParameter(f"--with {key}={text}: write true or false.")
        return text.lower() == "true"
    return _number(key, text, Fraction if Fraction in options else int)


def _number(key: str, text: str, kind: type[int | Fraction]) -> int | Fraction:
    try:
        return kind(text)
    except (ValueError, ZeroDivisionError) as error:
        what = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"--with {key}={text} is not {what}.") from error


def _options(kind: Any) -> list[Any]:
    """The types that a union allows, or the one that there is; without None."""
    union = get_origin(kind) in (Union, types.UnionType)
    found = get_args(kind) if union else (kind,)
    return [one for one in found if one is not type(None)]
