"""What URPE costs: the numbers of C beside the parameters of a model."""

from dataclasses import dataclass

from torch import nn

from everyformer.layers.gains import Gain


@dataclass(frozen=True)
class GainShare:
    """Parameters of a model, each counted once however many layers share it.

    Attributes:
        gains: Numbers of all tables C.
        others: All other parameters.

    Example:
        >>> print(GainShare(12_276, 109_514_298))
        URPE: 12,276 numbers beside 109,514,298 parameters, 0.0112 % more
    """

    gains: int
    others: int

    @property
    def share(self) -> float:
        """Of the gains, of what the model has without them; 0 for a model of gains alone.

        Example:
            >>> GainShare(1, 10_000).share
            0.0001
        """
        return self.gains / self.others if self.others else 0.0

    def __str__(self) -> str:
        """In one line."""
        return (
            f"URPE: {self.gains:,} numbers beside {self.others:,} parameters, "
            f"{100 * self.share:.3g} % more"
        )


def gain_share(model: nn.Module) -> GainShare:
    """How many parameters of a model are factors c of URPE, and how many others it has.

    Luo et al. 2022 (slides): "introduce 0.01% additional parameters". That is BERT_BASE
    with one gain for all layers: 12 heads times 2 * 512 - 1 offsets.

    Example:
        >>> from everyformer.layers import RelativeAttention
        >>> gain_share(RelativeAttention(8, 2, gain=True, max_len=4)).gains
        14
    """
    tables = {
        id(parameter)
        for part in model.modules()
        if isinstance(part, Gain)
        for parameter in part.parameters()
    }
    sizes = {id(parameter): parameter.numel() for parameter in model.parameters()}
    gains = sum(size for name, size in sizes.items() if name in tables)
    return GainShare(gains, sum(sizes.values()) - gains)
