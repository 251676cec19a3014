"""What `torch.compile` compiles of an objective, once for all cells of a process.

The blocks of the encoder one by one, and the head with its loss. Equal parts, of one model
or of the next, share compiled code: parameters are arguments of it. Shapes are static, so
each length and each kind of block has code of its own, and dynamo's limit on their number,
made for functions that change by mistake, is raised.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import nn

from everyformer.errors import TrainingError
from everyformer.train.objective import Objective, token_losses

MOST_VARIANTS = 512
"""Of one function: mixers x lengths x batches x precisions of a long session."""


def compile_parts(objective: Objective, backend: str = "inductor") -> None:
    """Compile each of `encoder.blocks`, and the losses of tokens, in place.

    Raises:
        TrainingError: If the encoder has no blocks.
    """
    blocks = getattr(objective.encoder, "blocks", None)
    if not isinstance(blocks, nn.ModuleList):
        msg = (
            f"{type(objective.encoder).__name__} has no ModuleList named blocks, so there "
            "is nothing to compile one by one. Set compile=False, or name its blocks so."
        )
        raise TrainingError(msg)
    for block in blocks:
        block.compile(backend=backend, dynamic=False)
    objective.token_losses = _compiled_losses(backend)


@contextmanager
def many_variants() -> Generator[None, None, None]:
    """Allow as many variants of a function as lengths and mixers need."""
    config: Any = import_module("torch._dynamo.config")
    limits = {"recompile_limit": MOST_VARIANTS, "accumulated_recompile_limit": 4096}
    with config.patch(**limits):
        yield


@cache
def _compiled_losses(backend: str) -> Any:
    return torch.compile(token_losses, backend=backend, dynamic=False)
