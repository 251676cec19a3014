"""The commands of the program: name, what each does, an example."""

from collections.abc import Callable
from dataclasses import dataclass


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
    match name:
        case "demo":
            from everyformer.cli.commands.demo import demo

            return demo
        case "targets":
            from everyformer.cli.commands.targets import targets

            return targets
        case "methods":
            from everyformer.cli.commands.methods import methods

            return methods
        case "plan":
            from everyformer.cli.commands.plan import plan

            return plan
        case "construct":
            from everyformer.cli.commands.construct import construct

            return construct
        case "run":
            from everyformer.cli.commands.run import run

            return run
        case "verify":
            from everyformer.cli.commands.verify import verify

            return verify
        case "inspect":
            from everyformer.cli.commands.inspect import inspect

            return inspect
        case "explore":
            from everyformer.cli.commands.explore import explore

            return explore
        case "export":
            from everyformer.cli.commands.export import export

            return export
        case "contextual-mapping":
            from everyformer.cli.commands.contextual_mapping import contextual_mapping

            return contextual_mapping
        case "ablate":
            from everyformer.cli.commands.ablate import ablate

            return ablate
        case "check":
            from everyformer.cli.commands.check import check

            return check
        case "check-all":
            from everyformer.cli.commands.check_all import check_all

            return check_all
        case "check-module":
            from everyformer.cli.commands.check_module import check_module

            return check_module
        case "check-pattern":
            from everyformer.cli.commands.check_pattern import check_pattern

            return check_pattern
        case "explain":
            from everyformer.cli.commands.explain import explain

            return explain
        case "bench":
            from everyformer.cli.commands.bench import bench

            return bench
        case "reproduce":
            from everyformer.cli.commands.reproduce import reproduce

            return reproduce
        case "contexts":
            from everyformer.cli.commands.contexts import contexts

            return contexts
        case "data":
            from everyformer.cli.commands.data import data

            return data
        case _:
            raise KeyError(name)
