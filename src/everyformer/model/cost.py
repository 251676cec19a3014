"""What a network costs, counted from its weights."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from everyformer.model.network import Network
from everyformer.papers import YUN2020, implements


@dataclass(frozen=True)
class Cost:
    """Sizes of a network.

    Attributes:
        blocks: Depth.
        attention_layers: Blocks whose attention half is used.
        feed_forward_layers: Blocks whose feed-forward half is used.
        parameters: Numbers in all blocks of the class, unused halves included, and in E;
            of a network with registers, whose layers differ in size, numbers stored.
        nonzeros: Numbers among them that are not zero.
        stored_bytes: Eight bytes for each stored number (unused halves are not stored).
        connections: sum_k |A_k| of each pattern of a sparse network; () for others.
    """

    blocks: int
    attention_layers: int
    feed_forward_layers: int
    parameters: int
    nonzeros: int
    stored_bytes: int
    connections: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object; without connections, where all tokens are connected."""
        values = asdict(self)
        if not self.connections:
            del values["connections"]
        return values


@implements(YUN2020, "Section 5.4")
def count(network: Network) -> Cost:
    """Count blocks, parameters and non-zeros of a network."""
    spec = network.architecture
    attention = sum(s.blocks for s in network.stages if s.attention is not None)
    feed_forward = sum(s.blocks for s in network.stages if s.feed_forward is not None)
    extra = 0 if network.positions is None else network.positions.size
    # A gain that is not stored is 1 everywhere, and no zero.
    ones = 0
    if spec.attention == "urpe":
        heads = [stage.attention for stage in network.stages if stage.attention is not None]
        offsets = spec.num_heads * (2 * spec.seq_len - 1)
        ones = sum(stack.layers * offsets for stack in heads if stack.gain is None)
    # phi is a choice of activation and a mask one of neighbours: neither is trainable.
    arrays = {name: a for name, a in network.arrays() if not name.endswith(".mask")}
    weights = [array for name, array in arrays.items() if ".phi." not in name]
    parameters = network.blocks * spec.block_parameters + extra
    if network.registers is not None:
        parameters = sum(array.size for array in weights)
    return Cost(
        blocks=network.blocks,
        attention_layers=attention,
        feed_forward_layers=feed_forward,
        parameters=parameters,
        nonzeros=ones + sum(int(np.count_nonzero(array)) for array in weights),
        stored_bytes=8 * sum(array.size for array in arrays.values()),
        connections=() if spec.pattern is None else spec.pattern.connections,
    )
