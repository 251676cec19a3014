"""The commands of the program.

The command a-b is the function `a_b` of the module of that name in this folder. Beside it
stands EXAMPLE, how it is called.
"""

from collections.abc import Callable
from importlib import import_module

COMMANDS = {
    "demo": "Build, run and draw a small network, as an example.",
    "targets": "List the targets that come with everyformer.",
    "methods": "List the methods of construction and their settings.",
    "plan": "Show what a network would cost, without building it.",
    "construct": "Build the network of a target into a folder.",
    "run": "Evaluate a network on sequences from a .npy file.",
    "verify": "Check a certificate, from the files alone.",
    "inspect": "Tell the proof at one input, with its numbers.",
    "explore": "Make a page that runs a network in the browser.",
    "export": "Write a network in the format of another program.",
    "contextual-mapping": "Check that ids are a contextual mapping.",
    "ablate": "Leave out or replace a stage, and verify it again.",
    "check": "Judge whether an attention layer can be universal.",
    "check-all": "Judge all attention layers of the library, in a table.",
    "check-module": "Judge an attention layer of your own.",
    "check-pattern": "Judge attention with a sparse pattern.",
    "explain": "Print what a rule of the checks means, by its code.",
    "bench": "Check one part of everyformer, then time it.",
    "reproduce": "Run an experiment of a paper, and print a table.",
    "contexts": "Follow words through the layers of trained encoders.",
    "data": "List or make the packs of data of the experiments.",
}
"""The commands, each with the first line of its docstring."""


def load(name: str) -> Callable[..., None]:
    """The function of a command, imported now.

    Raises:
        KeyError: If there is no such command.
    """
    if name not in COMMANDS:
        raise KeyError(name)
    function = name.replace("-", "_")
    return getattr(import_module(f"everyformer.cli.commands.{function}"), function)
