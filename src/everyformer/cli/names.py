"""What does not exist is refused before anything is loaded that it could name."""

import ast
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import typer

from everyformer.cli.defaults import (
    ASSUMPTIONS,
    EXPERIMENTS,
    LAYERS,
    PATTERN_FILES,
    PATTERNS,
    RHOS,
    RHOS_OF_A_NUMBER,
    RULES,
    TARGETS,
)
from everyformer.errors import (
    InputError,
    PatternError,
    TargetError,
    TrainingError,
    did_you_mean,
)
from everyformer.files.names import NETWORK_FILE

ALIASES = {"rpe": "t5"}
"""Of layers: the paper's words."""


def check_layer(name: str) -> None:
    """Refuse a layer that the library does not have.

    Raises:
        InputError: If there is no such layer.
    """
    base = name.partition("+")[0]
    if ALIASES.get(base, base) not in LAYERS:
        msg = (
            f"{name!r} is not a layer of the library.{did_you_mean(base, LAYERS)} Choose "
            f"one of {', '.join(LAYERS)}, each also with +urpe. `everyformer check-all` "
            "judges all, `everyformer check-module` one of your own, `everyformer "
            "check-pattern` a sparse pattern."
        )
        raise InputError(msg)


def check_module_name(name: str) -> None:
    """Refuse what is not file.py:attribute, or has no such file.

    Raises:
        InputError: If it is not of that form.
        FileNotFoundError: If there is no such file.
    """
    file = python_file(name)
    if file is None:
        msg = f"{name!r} is not file.py:attribute. Write for example"
        msg = f"{msg} my_layers.py:MyAttention; `everyformer check` judges a layer of the"
        raise InputError(f"{msg} library.")
    check_file(file)


def check_target(name: str, seq_len: int | None = None, d_model: int | None = None) -> None:
    """Refuse a target that is neither in the gallery nor in a file.

    Args:
        name: What the user gave.
        seq_len: n, which only targets of the gallery take.
        d_model: d, likewise.

    Raises:
        TargetError: If there is no such target.
        FileNotFoundError: If there is no such file.
        typer.BadParameter: If a size is given for a target that has one already.
    """
    if name in TARGETS:
        return
    file = python_file(name)
    if file is None and not name.endswith(".py"):
        msg = (
            f"{name!r} is neither file.py:attribute nor a target of the gallery."
            f"{did_you_mean(name, TARGETS)} Write for example my_file.py:target, or one of "
            f"{', '.join(TARGETS)}."
        )
        raise TargetError(msg)
    if file is not None and (seq_len is not None or d_model is not None):
        msg = (
            f"--seq-len and --d-model choose the size of a gallery target, but {name} is "
            "a target of your own, whose size is in its file. Leave them out."
        )
        raise typer.BadParameter(msg)
    check_file(Path(name) if file is None else file)


def check_method(name: str | None) -> None:
    """Refuse a method that the registry does not have; None is the default one.

    Raises:
        typer.BadParameter: If there is no such method.
    """
    names, _ = methods_and_default()
    if name is not None and name not in names:
        near = did_you_mean(name, names)
        msg = f"--method {name} does not exist.{near} Choose one of {', '.join(names)}."
        raise typer.BadParameter(msg)


def methods_and_default() -> tuple[Sequence[str], str]:
    """The names of the registry of methods, and which is the default.

    Where the registry is not loaded, they are read from its text: loading it would load
    all methods. Where it is, a program may have added some.
    """
    loaded = sys.modules.get("everyformer.construct.registry")
    if loaded is not None:
        return tuple(loaded.METHODS), loaded.DEFAULT
    tree = ast.parse((files("everyformer.construct") / "registry.py").read_text("utf-8"))
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            keys = [key for key in node.value.keys if key is not None]
            found[ast.unparse(node.target)] = tuple(map(ast.literal_eval, keys))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found[ast.unparse(node.targets[0])] = node.value.value
    return found["METHODS"], found["DEFAULT"]


def check_pattern_name(name: str) -> None:
    """Refuse a pattern that is neither a name nor files.

    Raises:
        PatternError: If there is no such pattern.
        FileNotFoundError: If there is no such file.
    """
    own = python_file(name)
    paths = [Path(one) for one in name.split(",")] if own is None else [own]
    if own is not None or any(path.suffix in PATTERN_FILES for path in paths):
        for path in paths:
            check_file(path)
        return
    if name in PATTERNS:
        return
    if Path(name).suffix:
        masks, *edges = PATTERN_FILES
        msg = (
            f"{name!r} is neither a pattern's name nor a file of masks ({masks}), of "
            f"edges ({', '.join(edges)}), or file.py:attribute"
        )
        raise PatternError(f"{msg}. Names are {', '.join(PATTERNS)}.")
    msg = f"There is no pattern {name!r}. Choose one of {', '.join(PATTERNS)}."
    raise PatternError(msg)


def check_rho(name: str) -> None:
    """Refuse a map that is neither a name nor a function in a file.

    Raises:
        InputError: If there is no such map.
        FileNotFoundError: If there is no such file.
    """
    if name.endswith(".py"):
        msg = f"--rho {name}: a file may have many functions. Name one, {name}:function."
        raise InputError(msg)
    file = python_file(name)
    if file is not None:
        check_file(file)
    elif name not in RHOS and name.partition(":")[0] not in RHOS_OF_A_NUMBER:
        examples = [f"{kind}:{number}" for kind, number in RHOS_OF_A_NUMBER.items()]
        known = ", ".join([*RHOS, *examples])
        raise InputError(f"There is no probability map {name!r}. Choose one of {known}.")


def check_code(code: str) -> None:
    """Refuse a code that no rule and no assumption has; rules have names besides.

    Raises:
        InputError: If there is no such rule.
    """
    if code.upper() not in {*ASSUMPTIONS, *RULES} and code not in RULES.values():
        known = ", ".join(f"{one} ({name})" for one, name in RULES.items())
        raise InputError(f"There is no rule {code}. The rules: {known}.")


def check_experiment(name: str) -> None:
    """Refuse an experiment that does not exist.

    Raises:
        TrainingError: If no experiment has that name.
    """
    if name not in EXPERIMENTS:
        msg = f"{name!r} is not an experiment. There are {', '.join(EXPERIMENTS)}."
        raise TrainingError(msg)


def check_packs(experiment: str, size: str, data: Path | None) -> None:
    """Refuse what is not a folder of packs, and a reduced size, which reads them, without.

    Raises:
        TrainingError: With the packs.
    """
    from everyformer.data.packs.sources import RECIPES

    packs = [one.name for one in RECIPES.values() if experiment in one.experiments]
    if packs and size != "paper" and data is not None and not data.is_dir():
        msg = (
            f"--data {data} is not a folder. Give the folder of packs that `everyformer "
            f"data pack` wrote; {experiment} reads {', '.join(packs)}."
        )
        raise TrainingError(msg)
    if packs and size == "reduced" and data is None:
        msg = (
            f"--size reduced of {experiment} reads packs of {', '.join(packs)}, and no "
            "folder was given. Give it with --data DIR; `everyformer data list` says what "
            "they are and how they are made."
        )
        raise TrainingError(msg)


def python_file(name: str) -> Path | None:
    """The file of file.py:attribute; None for what is not of that form.

    Example:
        >>> str(python_file("mine.py:f")), python_file("mine.py"), python_file("sort")
        ('mine.py', None, None)
    """
    file, colon, attribute = name.rpartition(":")
    return Path(file) if colon and attribute and file.endswith(".py") else None


def check_network(path: Path) -> None:
    """Refuse a folder without a network.

    Raises:
        FileNotFoundError: If the folder has no file of that name.
    """
    if path.is_dir() and not (path / NETWORK_FILE).is_file():
        msg = f"{path} holds no {NETWORK_FILE}. Give a folder that `everyformer construct`"
        raise FileNotFoundError(f"{msg} wrote.")


def check_file(path: Path) -> None:
    """Refuse a file that does not exist.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    if not path.is_file():
        msg = f"There is no file {path}."
        raise FileNotFoundError(msg)
