"""How an operator is called: what autocast asks for, and who records or transforms it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad


def autocasted(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the dtype that autocast asks for on their device, if it is on."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple([x.to(dtype) for x in tensors])


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """For what an operator computes, forward and backward, once `autocasted` is done."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def is_plain(*tensors: Tensor) -> bool:
    """Whether these are numbers to compute with, and nothing is compiled or traced."""
    if torch.compiler.is_compiling() or tensors[0].device.type == "meta":
        return False
    return all([type(x) in (Tensor, nn.Parameter) for x in tensors])  # noqa: C419 (speed)


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is at work: grad, jacrev, vmap and others."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]


def is_forward_mode() -> bool:
    """Whether derivatives travel forward with the numbers, as in `torch.func.jvp`.

    Kernels do not carry them along, so plain torch has to run.
    """
    return forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]


def needs_plain_torch(*tensors: Tensor) -> bool:
    """Whether no operator of the library can run, so that plain torch has to.

    Kernels carry no derivatives along in forward mode, and a compiled transform of
    `torch.func` cannot look into a custom op.
    """
    return is_forward_mode() or (is_transformed() and not is_plain(*tensors))
