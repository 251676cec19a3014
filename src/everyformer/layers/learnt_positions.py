"""The tables B and C of a model, as Luo et al. 2022 draw them in Figure 2."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.layers.encodings import T5, Graphormer, Swin
from everyformer.layers.gains import GraphGain, ToeplitzGain, WindowGain
from everyformer.layers.graphs.pairs import PathBias
from everyformer.layers.offsets import (
    Exact,
    LogBuckets,
    OffsetIndex,
    T5Buckets,
    by_offset,
    spread_offsets,
)
from everyformer.layers.past import Past


@torch.no_grad()
def learnt_positions(model: nn.Module) -> dict[str, Float[Tensor, "h ..."]]:
    """B and C of all layers that have numbers for offsets, on the CPU in float32.

    B is the bias of T5 or Swin, C the gain of URPE. For sequences an array has a row for
    each head and a column for each offset i - j from -(n - 1) to n - 1, buckets spelt out
    up to their largest distance, and 1 for later keys where nobody sees them; for windows
    of M x M it is h x (2M - 1) x (2M - 1), by dx and dy. Tables that several layers share
    are there once, as "B" and "C"; where there are more they are numbered: "B0", "B1". For
    graphs the names are "B by distance" and "C by distance": columns for pairs with the
    virtual node, unreachable ones, and distances from 0 on. Encodings whose bias depends on
    the tokens (Shaw, DeBERTa, Transformer-XL) have no matrix B, and ALiBi's is not learnt.

    Example:
        >>> from everyformer.layers import RelativeAttention
        >>> layer = RelativeAttention(8, 2, encoding="t5", gain=True, max_len=4)
        >>> {name: tuple(x.shape) for name, x in learnt_positions(layer).items()}
        {'B': (2, 7), 'C': (2, 7)}
    """
    kinds: dict[str, list[Tensor]] = {"B": [], "C": []}
    kinds |= {"B by distance": [], "C by distance": []}
    for part in model.modules():
        letter = "B" if isinstance(part, T5 | Swin) else "C"
        if isinstance(part, T5 | ToeplitzGain) and (reach := _reach(part.index)):
            own = by_offset(part.table, part.index, reach)
            if isinstance(part.index, Past):
                own = torch.cat([torch.ones_like(own[:, 1:reach]), part.table], 1)
            kinds[letter].append(own)
        elif isinstance(part, Swin | WindowGain):
            side = 2 * part.window - 1
            kinds[letter].append(part.table.unflatten(-1, (side, side)))
        elif isinstance(part, GraphGain | Graphormer | PathBias):
            letter = "C" if isinstance(part, GraphGain) else "B"
            kinds[f"{letter} by distance"].append(part.table)
    return {
        letter if len(found) == 1 else f"{letter}{place}": table.detach().float().cpu()
        for letter, found in kinds.items()
        for place, table in enumerate(found)
    }


def toeplitz(vector: Float[Tensor, "h r"]) -> Float[Tensor, "h n n"]:
    """The matrices whose entry (i, j) is that of offset i - j; r = 2n - 1.

    Example:
        >>> toeplitz(torch.tensor([[-1.0, 0.0, 1.0]])).tolist()
        [[[0.0, -1.0], [1.0, 0.0]]]
    """
    n = (vector.shape[-1] + 1) // 2
    return spread_offsets(vector[:, None].expand(-1, n, -1), n)


def _reach(index: OffsetIndex) -> int:
    """The shortest length with all offsets that are told apart; 0 where that is unknown."""
    if isinstance(index, Exact):
        return index.max_len
    counted = isinstance(index, T5Buckets | LogBuckets | Past)
    return index.max_distance + 1 if counted else 0
