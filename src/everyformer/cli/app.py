"""The program `everyformer`: its commands, and how they fail."""

import errno
import functools
import io
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from everyformer import __version__
from everyformer.cli.commands import COMMANDS, load
from everyformer.cli.start import INTERRUPTED, quit_now, quit_on_interrupt
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
                from everyformer.construct.registry import DEFAULT, METHODS

                parameter.help = told.format(methods=", ".join(METHODS), default=DEFAULT)
        super().format_help(ctx, formatter)


class _Commands(TyperGroup):
    """The commands; each is imported when it is run, or asked for its help."""

    def __init__(self, **settings: Any) -> None:
        """With names and first lines, which need no import."""
        super().__init__(**settings)
        for name, one in COMMANDS.items():
            self.add_command(TyperCommand(name, help=one.help))

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


class _TerminatedError(BaseException):
    """Somebody asked the program to end; a BaseException, so that it cleans up first."""


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with one line on stderr instead of a traceback for wrong input."""

    @functools.wraps(command)
    def reporting(*args: Any, **kwargs: Any) -> None:
        _write_any_text()
        heard: list[int] = []
        try:
            with _signals_raise(heard):
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
            advice = FULL if printed and _is_full(error) else ""
            typer.echo(f"Error: {_in_words(error)}{advice}", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            typer.echo("Interrupted.", err=True)
            raise typer.Exit(INTERRUPTED) from error
        except _TerminatedError as error:
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


@contextmanager
def _signals_raise(heard: list[int]) -> Generator[None, None, None]:
    """While the block runs, SIGTERM, SIGHUP and SIGINT raise, unless somebody handles them.

    Args:
        heard: Gets the number of SIGINT when it comes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals belong to the main thread
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers: dict[int, Any] = {getattr(signal, name): _terminate for name in names}
    handlers[signal.SIGINT] = interrupt
    free = (signal.SIG_DFL, signal.default_int_handler, quit_now)
    before = {n: signal.getsignal(n) for n in handlers}
    ours = [n for n in handlers if before[n] in free]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError(128 + number)


def _is_full(error: BaseException) -> bool:
    """Whether there was no room for a file."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return isinstance(error, OSError) and error.errno in full


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
            show_default=False,
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
    example = f"Example: {COMMANDS[name].example}"
    alone.command(name, cls=_Command, epilog=example)(_reporting(load(name)))
    return typer.main.get_command(alone)


if __name__ == "__main__":
    main()
