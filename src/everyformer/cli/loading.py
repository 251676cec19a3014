"""What the user names on the command line, as objects of the library."""

import importlib.util
import inspect
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from everyformer.cli.names import check_file, check_target
from everyformer.errors import FileFormatError, InputError, TargetError
from everyformer.files.names import NETWORK_FILE
from everyformer.files.npy_file import read_npy
from everyformer.model.network import Network, load
from everyformer.targets.failures import described
from everyformer.targets.gallery import GALLERY
from everyformer.targets.target import Target

DEFAULT_SEQ_LEN = 2
DEFAULT_D_MODEL = 1


def load_target(
    name: str,
    seq_len: int | None = None,
    d_model: int | None = None,
    *,
    trace: bool = True,
) -> Target:
    """The target that `file.py:attribute` or the name of a gallery target means.

    What the user's file prints goes to stderr: stdout is for results.

    Args:
        name: What the user gave.
        seq_len: n of a gallery target; 2 by default.
        d_model: d of a gallery target; 1 by default.
        trace: Whether it may be known by its numpy operations.

    Raises:
        TargetError: If there is no such target, or the file fails.
        FileNotFoundError: If there is no such file.
        typer.BadParameter: If a size is given for a target that has one already.
    """
    found = _named(name, seq_len, d_model)
    return found if trace else found.untraced()


def _named(name: str, seq_len: int | None, d_model: int | None) -> Target:
    if name in GALLERY:
        return GALLERY[name](seq_len or DEFAULT_SEQ_LEN, d_model or DEFAULT_D_MODEL)
    check_target(name, seq_len, d_model)
    file, _, attribute = name.rpartition(":")
    if not attribute or not file:
        raise TargetError(f"{name} is a file, not a target in it. {_in_file(Path(name))}.")
    with redirect_stdout(sys.stderr):
        return _target_in(import_file(Path(file)), Path(file), attribute)


def import_file(path: Path) -> ModuleType:
    """A file of the user's as a module.

    Raises:
        FileNotFoundError: If there is no such file.
        TargetError: If it fails, or is not one of Python.
    """
    check_file(path)
    if path.suffix != ".py":
        raise TargetError(f"{path} does not end in .py, as files of Python do.")
    name = f"target_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None, "a path that ends in .py has a loader"  # noqa: S101
    assert spec.loader is not None, "a path that ends in .py has a loader"  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import does; dataclasses look themselves up there
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as for a script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        msg = f"{path} failed while it was read: {described(error)}. Repair the file."
        raise TargetError(msg) from error
    return module


def _in_file(path: Path) -> str:
    """What a file without an attribute may have meant."""
    with redirect_stdout(sys.stderr):
        return _targets_of(import_file(path), path)


def _targets_of(module: ModuleType, path: Path) -> str:
    """The targets of a file, as they are given on the command line; how to make one."""
    own = vars(module).items()
    known = [f"{path}:{key}" for key, value in own if isinstance(value, Target)]
    if known:
        return f"Its targets: {', '.join(known)}"
    functions = [
        key
        for key, value in own
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    f = functions[0] if functions else "f"
    return (
        f"It has no Target: write target = everyformer.Target({f}, seq_len=n, d_model=d) "
        f"in it, and give {path}:target"
    )


def _target_in(module: ModuleType, path: Path, attribute: str) -> Target:
    if not hasattr(module, attribute):
        msg = f"{path} has no attribute {attribute!r}. {_targets_of(module, path)}."
        raise TargetError(msg)
    value: Any = getattr(module, attribute)
    if not isinstance(value, Target) and callable(value):
        value = _call(value, path, attribute)
    if not isinstance(value, Target):
        msg = (
            f"{path}:{attribute} is of type {type(value).__name__}, not an "
            "everyformer.Target nor a function that returns one."
        )
        raise TargetError(msg)
    return value


def _call(function: Any, path: Path, attribute: str) -> Any:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError) as error:
        msg = (
            f"{path}:{attribute} is a function that cannot be called without arguments. "
            f"To approximate it, wrap it: target = everyformer.Target({attribute}, "
            "seq_len=..., d_model=...), and give the name of that."
        )
        raise TargetError(msg) from error
    try:
        return function()
    except (Exception, SystemExit) as error:
        msg = f"{path}:{attribute}() failed: {described(error)}. Repair the file."
        raise TargetError(msg) from error


def load_network(path: Path) -> Network:
    """The network in a folder that `everyformer construct` wrote, or in a file."""
    return load(path / NETWORK_FILE if path.is_dir() else path)


def read_array(path: Path, of: str) -> np.ndarray:
    """The array in a .npy file.

    Raises:
        FileFormatError: If it is not such a file.
    """
    try:
        return read_npy(path)
    except ValueError as error:
        msg = f"{path} is not a .npy file of {of} ({error}). Write it with numpy.save."
        raise FileFormatError(msg) from error


def read_input(path: Path, network: Network) -> np.ndarray:
    """Sequences for a network from a .npy file, shape (*batch, n, d).

    Raises:
        FileFormatError: If it is not such a file, or the network cannot take the array.
    """
    x = read_array(path, "numbers")
    try:
        return network.check_input(x)
    except InputError as error:
        msg = f"{path}: {error}"
        raise FileFormatError(msg) from error
