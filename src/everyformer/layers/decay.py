"""Which parameters stay out of weight decay: tables of encodings and gains.

Decay pulls numbers to 0. A gain starts at 1, where it changes nothing; at 0 it would switch
attention off. BERT and others also leave out biases and norms.
"""

from typing import Any

from torch import nn

from everyformer.layers.encodings import Encoding
from everyformer.layers.gains import Gain

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


def no_decay_parameters(module: nn.Module) -> set[str]:
    """Names of the tables B and C, and of XL's u and v, as `named_parameters` says them.

    Example:
        >>> from everyformer.layers import RelativeAttention
        >>> sorted(no_decay_parameters(RelativeAttention(8, 2, encoding="t5", gain=True)))
        ['encoding.table', 'gain.table']
    """
    tables = {
        id(getattr(part, name))
        for part in module.modules()
        if isinstance(part, Encoding | Gain)
        for name in part.no_decay
        if getattr(part, name) is not None
    }
    return {name for name, p in module.named_parameters() if id(p) in tables}


def biases_and_norms(module: nn.Module) -> set[str]:
    """Names of all biases, and of the scales and shifts of norms.

    Example:
        >>> part = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))
        >>> sorted(biases_and_norms(part))
        ['0.bias', '1.bias', '1.weight']
    """
    norms = {
        id(p)
        for part in module.modules()
        if isinstance(part, NORMS)
        for p in part.parameters(recurse=False)
    }
    return {
        name
        for name, p in module.named_parameters()
        if id(p) in norms or name.endswith("bias")
    }


def parameter_groups(
    module: nn.Module, weight_decay: float, *, decay_biases: bool = True
) -> list[dict[str, Any]]:
    """Groups for an optimiser: all other parameters with decay, the tables without.

    Args:
        module: Whose parameters.
        weight_decay: Of the first group.
        decay_biases: False makes a third group without decay, of biases and norms.

    Example:
        >>> import torch
        >>> from everyformer.layers import RelativeAttention
        >>> layer = RelativeAttention(8, 2, gain=True)
        >>> optimiser = torch.optim.AdamW(parameter_groups(layer, weight_decay=0.01))
        >>> [len(group["params"]) for group in optimiser.param_groups]
        [4, 1]
        >>> [len(g["params"]) for g in parameter_groups(layer, 0.01, decay_biases=False)]
        [2, 1, 2]
    """
    tables = no_decay_parameters(module)
    plain = set[str]() if decay_biases else biases_and_norms(module) - tables
    named = dict(module.named_parameters())
    decayed = [p for name, p in named.items() if name not in tables | plain]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": [named[name] for name in sorted(tables)], "weight_decay": 0.0},
    ]
    if not decay_biases:
        left = [p for name, p in named.items() if name in plain]
        groups.append({"params": left, "weight_decay": 0.0})
    return groups
