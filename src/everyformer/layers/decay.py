"""Which parameters stay out of weight decay: tables of encodings and gains.

Decay pulls numbers to 0. A gain starts at 1, where it changes nothing; at 0 it would switch
attention off.
"""

from typing import Any

from torch import nn

from everyformer.layers.encodings import Encoding
from everyformer.layers.gains import Gain


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


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for an optimiser: all other parameters with decay, the tables without.

    Example:
        >>> import torch
        >>> from everyformer.layers import RelativeAttention
        >>> layer = RelativeAttention(8, 2, gain=True)
        >>> optimiser = torch.optim.AdamW(parameter_groups(layer, weight_decay=0.01))
        >>> [len(group["params"]) for group in optimiser.param_groups]
        [4, 1]
    """
    free = no_decay_parameters(module)
    named = dict(module.named_parameters())
    return [
        {
            "params": [p for name, p in named.items() if name not in free],
            "weight_decay": weight_decay,
        },
        {"params": [named[name] for name in sorted(free)], "weight_decay": 0.0},
    ]
