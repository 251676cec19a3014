"""The program `everyformer`: its commands, and how they fail."""

import functools
import io
import re
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from everyformer import __version__
from everyformer.cli.commands import COMMANDS, load
from everyformer.cli.names import methods_and_default
from everyformer.cli.saving import is_full
from everyformer.cli.signals import TerminatedError, signals_raise
from everyformer.cli.start import INTERRUPTED, quit_on_interrupt
from everyformer.errors import EveryformerError

FULL = (
    " Nothing was left behind. Make room, or write elsewhere: -o chooses the folder, and "
    "the environment variable TMPDIR where temporary files lie."
)


class _Command(TyperCommand):
    """A command; the methods that its help names are looked up when it is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        for parameter in self.params:
            told: str = getattr(parameter, "help", None) or ""
            if isinstance(parameter, TyperOption) and "{methods}" in told:
                names, default = methods_and_default()
                parameter.help = told.format(methods=", ".join(names), default=default)
        super().format_help(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what cannot be taken is told with what was given."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _with_what_was_given(error)
            raise


def _with_what_was_given(error: typer.BadParameter) -> str:
    """What was given, why not, and what to write; typer's own words leave out something."""
    told = getattr(error.__cause__, "errors", list)()  # pydantic's, which reads numbers
    if not told:
        said = re.sub(r"^dir ('.*' is a file)", r"\1, not a folder", error.message or "")
        return re.sub(r"^file ('.*') is a directory", r"\1 is a folder, not a file", said)
    given, limits = told[0]["input"], told[0].get("ctx", {})
    words = {
        "int_parsing": f"{given!r} is not an integer; write it in digits, such as 3.",
        "float_parsing": f"{given!r} is not a number; write it in digits, such as 1.5.",
        "greater_than_equal": f"{given} is too small; give at least {limits.get('ge')}.",
        "less_than_equal": f"{given} is too large; give at most {limits.get('le')}.",
    }
    return words.get(told[0]["type"], error.message)


class _Commands(TyperGroup):
    """The commands; each is imported when it is run, or asked for its help."""

    def __init__(self, **settings: Any) -> None:
        """With names and first lines, which need no import."""
        super().__init__(**settings)
        for name, first_line in COMMANDS.items():
            self.add_command(TyperCommand(name, help=first_line))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, or None."""
        return _command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The names with their first lines."""
        TyperGroup(commands=dict(self.commands)).format_commands(ctx, formatter)


app = typer.Typer(
    name="everyformer",
    cls=_Commands,
    help="Turn a function into the weights of a Transformer, with a proved bound on the "
    "error; judge whether attention layers and sparse patterns can be universal.",
    epilog="Begin with: everyformer demo",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the program; the exit code is 0, 2 for wrong input, or 130 after Ctrl-C.

    It is 2 also where nothing can be written, and 141 where nobody reads.

    `verify` ends with 1 for REFUTED and with 3 for UNKNOWN.
    """
    quit_on_interrupt()
    app()


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with one line on stderr instead of a traceback for wrong input."""

    @functools.wraps(command)
    def reporting(*args: Any, **kwargs: Any) -> None:
        _write_any_text()
        heard: list[int] = []
        try:
            with signals_raise(heard):
                try:
                    command(*args, **kwargs)
                finally:
                    sys.stdout.flush()  # what cannot be written is an error, not a result
        except BrokenPipeError as error:  # 1, as click would have it, is REFUTED
            sys.stdout = io.StringIO()
            raise typer.Exit(128 + 13) from error
        except (EveryformerError, OSError, MemoryError) as error:
            printed = _writable()
            sys.stdout = sys.stdout if printed else io.StringIO()
            advice = FULL if printed and is_full(error) else ""
            typer.echo(f"Error: {_in_words(error)}{advice}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from error
        except TerminatedError as error:
            typer.echo("Terminated.", err=True)
            raise typer.Exit(error.args[0]) from error
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            if heard:  # an import that was interrupted may fail in words of its own
                typer.echo("Interrupted.", err=True)
                raise typer.Exit(INTERRUPTED) from error
            if "allocate memory" in str(error):  # as torch says it
                typer.echo(f"Error: {_in_words(MemoryError())}", err=True)
                raise typer.Exit(2) from error
            traceback.print_exc()  # a bug; Python's exit code 1 would mean REFUTED
            raise typer.Exit(2) from error

    return reporting


def _write_any_text() -> None:
    """File names may hold bytes that are not text, and a terminal may know few signs."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _writable() -> bool:
    """Whether stdout takes what it still holds."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _in_words(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        detail = f" ({error})" if str(error) else ""
        return f"Not enough memory{detail}. Use a coarser grid or fewer sequences."
    if isinstance(error, OSError) and error.strerror:
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{place}{error.strerror}."
    return str(error)


def _show_version(asked: bool) -> bool:
    """What it returns is the value of the option."""
    if asked:
        typer.echo(f"everyformer {__version__}")
        raise typer.Exit
    return asked


@app.callback()
def _everyformer(
    _: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Show the version and exit.",
        ),
    ] = False,
) -> None:
    """Nothing happens before the command."""


@functools.cache
def _command(name: str) -> Any:
    """A command of the table, as typer has it."""
    alone = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    command = load(name)
    example = f"Example: {sys.modules[command.__module__].EXAMPLE}"
    alone.command(name, cls=_Command, epilog=example)(_reporting(command))
    return typer.main.get_command(alone)


if __name__ == "__main__":
    main()
