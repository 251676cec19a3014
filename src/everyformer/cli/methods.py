"""`everyformer methods`, and a method from its name and settings."""

import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from fractions import Fraction
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from rich.table import Table

from everyformer.cli import tables
from everyformer.cli.pattern_files import load_pattern, read_path
from everyformer.construct.method import Method
from everyformer.construct.registry import DEFAULT, METHODS
from everyformer.patterns.pattern import Pattern


def methods() -> None:
    """List the methods of `construct` and `plan`, with their settings.

    Settings are given as --with KEY=VALUE, once for each.
    """
    shown = Table(title="Methods", title_justify="left", box=None, pad_edge=False)
    shown.add_column("--method", no_wrap=True)
    shown.add_column("--with", no_wrap=True)
    shown.add_column("what it is")
    for name, kind in METHODS.items():
        mark = " (default)" if name == DEFAULT else ""
        first = (kind.__doc__ or "").splitlines()[0]
        shown.add_row(f"{name}{mark}", "", first)
        for one in _settings(kind):
            default = "needed" if one.default is MISSING else f"default {one.default}"
            shown.add_row("", one.name, f"{one.metadata['help']} [{default}]")
    tables.show(shown)


def _settings(kind: Any) -> list["Field[Any]"]:
    """The fields that a user may set: those with a help text."""
    return [one for one in fields(kind) if "help" in one.metadata]


def read_method(name: str, given: Sequence[str], seq_len: int) -> Method:
    """The method of a name, with settings KEY=VALUE.

    Where a setting is a pattern, keys that are no settings are its parameters.

    Args:
        name: A name of the registry.
        given: The settings.
        seq_len: Number of tokens, for patterns.

    Raises:
        typer.BadParameter: If there is no such method or setting, or a value is wrong.
        PatternError: If there is no such pattern.
    """
    if name not in METHODS:
        msg = f"--method {name} does not exist. Choose one of {', '.join(METHODS)}."
        raise typer.BadParameter(msg)
    kind = METHODS[name]
    known = {one.name: one for one in _settings(kind)}
    types_of = get_type_hints(kind)
    texts = _split(given)
    settings = {key: text for key, text in texts.items() if key in known}
    rest = {key: text for key, text in texts.items() if key not in known}
    patterned = [key for key in known if types_of[key] is Pattern]
    if rest and not (patterned and patterned[0] in settings):
        has = f"It has {', '.join(known)}" if known else "It has no settings"
        msg = f"--with {next(iter(rest))}=...: method {name} has no such setting. {has}."
        raise typer.BadParameter(msg)
    missing = [
        one.name
        for one in known.values()
        if one.default is MISSING and one.name not in settings
    ]
    if missing:
        msg = f"--method {name} needs --with {missing[0]}=...: see `everyformer methods`."
        raise typer.BadParameter(msg)
    values = {
        key: _value(key, text, types_of[key], seq_len, rest)
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
    key: str, text: str, kind: Any, seq_len: int, parameters: Mapping[str, str]
) -> Any:
    """A setting as its type has it."""
    options = [one for one in _options(kind) if one is not type(None)]
    if options == [Pattern]:
        sized = None if text == "axial" else seq_len  # it has rows and columns
        return load_pattern(text, sized, [f"{k}={v}" for k, v in parameters.items()])
    if options == [Sequence[int]]:
        return read_path(text, zero_based=False)
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
    try:
        return int(text) if Fraction not in options else Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        what = "a number" if Fraction in options else "a whole number"
        raise typer.BadParameter(f"--with {key}={text} is not {what}.") from error


def _options(kind: Any) -> tuple[Any, ...]:
    """The types that a union allows, or the one that there is."""
    union = get_origin(kind) in (Union, types.UnionType)
    return get_args(kind) if union else (kind,)
