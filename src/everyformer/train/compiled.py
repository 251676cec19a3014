"""What `torch.compile` compiles of an objective, once for all cells of a process.

The blocks of the encoder one by one, and the head with its loss. Equal parts, of one model
or of the next, share compiled code: parameters are arguments of it. Shapes are static, so
each length and each kind of block has code of its own, and dynamo's limit on their number,
made for functions that change by mistake, is raised.

Kernels of attention are chosen while code is made, and no guard looks at that choice again.
So a run with another choice starts with nothing compiled, and the stored results of
autograd, whose key leaves the choice out, are not used.
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


_CHOICE = {"cudnn": False}
"""Of what is compiled in this process."""


def compile_parts(
    objective: Objective, backend: str = "inductor", *, cudnn: bool = False
) -> None:
    """Compile each of `encoder.blocks`, and the losses of tokens, in place.

    An encoder may name further parts of itself: `compiled_too`.

    Args:
        objective: Whose parts.
        backend: Of `torch.compile`.
        cudnn: Whether they will run with cuDNN's attention first.

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
    if _CHOICE["cudnn"] != cudnn:
        torch.compiler.reset()
        _CHOICE["cudnn"] = cudnn
    named: tuple[str, ...] = getattr(objective.encoder, "compiled_too", ())
    for part in (*blocks, *(objective.encoder.get_submodule(name) for name in named)):
        part.compile(backend=backend, dynamic=False)
    objective.token_losses = _compiled_losses(backend)


@contextmanager
def many_variants() -> Generator[None, None, None]:
    """Allow as many variants of a function as lengths and mixers need; for each call."""
    dynamo: Any = import_module("torch._dynamo.config")
    autograd: Any = import_module("torch._functorch.config")
    limits = {"recompile_limit": MOST_VARIANTS, "accumulated_recompile_limit": 4096}
    with dynamo.patch(**limits), autograd.patch(enable_autograd_cache=False):
        yield


@cache
def _compiled_losses(backend: str) -> Any:
    return torch.compile(token_losses, backend=backend, dynamic=False)
