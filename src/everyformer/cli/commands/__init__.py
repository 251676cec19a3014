"""The commands of the program: name, what each does, an example.

The command a-b is the function `a_b` of the module of that name in this folder.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Command:
    """What is known of a command before it is imported.

    Attributes:
        help: The first line of its docstring.
        example: How it is called.
    """

    help: str
    example: str


COMMANDS = {
    "demo": Command(
        "Build, run and draw a small network, as an example.",
        "everyformer demo",
    ),
    "targets": Command(
        "List the targets that come with everyformer.",
        "everyformer targets",
    ),
    "methods": Command(
        "List the methods of construction and their settings.",
        "everyformer methods",
    ),
    "plan": Command(
        "Show what a network would cost, without building it.",
        "everyformer plan sort --grid 16 -n 2",
    ),
    "construct": Command(
        "Build the network of a target into a folder.",
        "everyformer construct sort --grid 16 -o out/",
    ),
    "run": Command(
        "Evaluate a network on sequences from a .npy file.",
        "everyformer run out/ --input x.npy --output y.npy",
    ),
    "verify": Command(
        "Check a certificate, from the files alone.",
        "everyformer verify out/",
    ),
    "inspect": Command(
        "Tell the proof at one input, with its numbers.",
        "everyformer inspect out/ --x 0.1,0.5,0.9",
    ),
    "explore": Command(
        "Make a page that runs a network in the browser.",
        "everyformer explore sort -n 3 --grid 4 -o page.html",
    ),
    "export": Command(
        "Write a network in the format of another program.",
        "everyformer export out/ --onnx network.onnx",
    ),
    "contextual-mapping": Command(
        "Check that ids are a contextual mapping.",
        "everyformer contextual-mapping out/",
    ),
    "ablate": Command(
        "Leave out or replace a stage, and verify it again.",
        "everyformer ablate out/ --stage 'value map'",
    ),
    "check": Command(
        "Judge whether an attention layer can be universal.",
        "everyformer check urpe",
    ),
    "check-all": Command(
        "Judge all attention layers of the library, in a table.",
        "everyformer check-all -n 9",
    ),
    "check-module": Command(
        "Judge an attention layer of your own.",
        "everyformer check-module my_layers.py:MyAttention -n 16 -d 8",
    ),
    "check-pattern": Command(
        "Judge attention with a sparse pattern.",
        "everyformer check-pattern strided -n 64 --with width=8",
    ),
    "explain": Command(
        "Print what a rule of the checks means, by its code.",
        "everyformer explain EF003",
    ),
    "bench": Command(
        "Check one part of everyformer, then time it.",
        "everyformer bench execution --quick",
    ),
    "reproduce": Command(
        "Run an experiment of a paper, and print a table.",
        "everyformer reproduce urpe-synthetic --size smoke",
    ),
    "contexts": Command(
        "Follow words through the layers of trained encoders.",
        "everyformer contexts out/runs/mixers-bert_small/mlm_attention_0",
    ),
    "data": Command(
        "List or make the packs of data of the experiments.",
        "everyformer data list",
    ),
}


def load(name: str) -> Callable[..., None]:
    """The function of a command, imported now.

    Raises:
        KeyError: If there is no such command.
    """
    if name not in COMMANDS:
        raise KeyError(name)
    function = name.replace("-", "_")
    return getattr(import_module(f"everyformer.cli.commands.{function}"), function)
