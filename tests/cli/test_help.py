"""Help texts against snapshots; EVERYFORMER_SNAPSHOTS=write renews them."""

import os
from collections.abc import Callable
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.models import ArgumentInfo

from everyformer.cli.commands import load

SNAPSHOTS = Path(__file__).parent / "snapshots"
CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PINNED = f"typer=={version('typer')}" in CONSTRAINTS.read_text().splitlines()
COMMANDS = [
    "",
    "demo",
    "targets",
    "methods",
    "plan",
    "construct",
    "run",
    "verify",
    "inspect",
    "explore",
    "export",
    "contextual-mapping",
    "ablate",
    "check",
    "check-all",
    "check-module",
    "check-pattern",
    "explain",
    "bench",
    "reproduce",
    "contexts",
    "data",
]


@pytest.mark.skipif(not PINNED, reason="typer versions lay out help differently")
@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_the_stored_one(command: str, everyformer: Callable[..., Any]) -> None:
    text = everyformer(*command.split(), "--help").stdout
    snapshot = SNAPSHOTS / f"{command or 'everyformer'}.txt"
    if os.environ.get("EVERYFORMER_SNAPSHOTS") == "write":
        snapshot.write_text(text)
    assert text == snapshot.read_text()


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_help_teaches_with_an_example(
    command: str, everyformer: Callable[..., Any]
) -> None:
    lines = everyformer(command, "--help").stdout.splitlines()
    assert lines[-1].strip().startswith(f"Example: everyformer {command}")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_no_version_of_typer_takes_a_metavar_for_a_name(command: str) -> None:
    """Some make --SIZE of an option `size` with the metavar SIZE, if it has no name."""
    for parameter in signature(load(command)).parameters.values():
        for told in get_args(parameter.annotation)[1:]:
            decls = (told.default, *(told.param_decls or ()))  # as typer reads Annotated
            named = isinstance(told, ArgumentInfo) or str(decls[0]).startswith("-")
            assert named or (told.metavar or "").lower() != parameter.name, parameter


def test_no_command_shows_the_help(everyformer: Callable[..., Any]) -> None:
    assert "Begin with: everyformer demo" in everyformer(code=2).output
