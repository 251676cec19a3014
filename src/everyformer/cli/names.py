"""Names that do not exist are refused before what they could name is loaded."""

from difflib import get_close_matches

from everyformer.cli.defaults import ASSUMPTIONS, EXPERIMENTS, LAYERS, RULES
from everyformer.errors import InputError, TrainingError

ALIASES = {"rpe": "t5"}
"""Of layers: the paper's words."""


def check_layer(name: str) -> None:
    """Refuse a layer that the library does not have.

    Raises:
        InputError: If there is no such layer.
    """
    base = name.partition("+")[0]
    if ALIASES.get(base, base) not in LAYERS:
        near = get_close_matches(base, LAYERS, n=1)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        msg = (
            f"{name!r} is not a layer of the library.{meant} Choose one of "
            f"{', '.join(LAYERS)}, each also with +urpe. `everyformer check-all` "
            "judges all, `everyformer check-module` one of your own, `everyformer "
            "check-pattern` a sparse pattern."
        )
        raise InputError(msg)


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
