"""T5, mT5 and UMT5: the bias goes as a vector, one number for each head and offset.

They make their bias in `compute_bias`, (1, h, n_q, n_k), and call the attention function
with it. Here it is (h, n_q + n_k - 1): the buckets of all offsets are looked up in the
same table of parameters, which gets its gradients from there. Cross-attention has none,
where they add zeros.
"""

import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.layers.hugging_face.function import is_ours
from everyformer.layers.hugging_face.swapping import Swapped, original


class T5Bias(Swapped):
    """Goes before `T5Attention`, `MT5Attention` and `UMT5Attention`."""

    config: Any
    relative_attention_bias: nn.Embedding

    @property
    def has_relative_attention_bias(self) -> bool:
        """True for our function, so that no zeros are made: `compute_bias` gives None.

        Not before the weights are there, as they are made where this is true.
        """
        ready = is_ours(self.config) and getattr(self, "_is_hf_initialized", False)
        return ready or self.has_table()

    def has_table(self) -> bool:
        """Whether this module holds the table; cross-attention and later layers do not."""
        return "relative_attention_bias" in self._modules

    def compute_bias(
        self,
        query_length: int,
        key_length: int,
        device: torch.device | None = None,
        past_seen_tokens: int | Tensor = 0,
        cache_position: Tensor | None = None,
    ) -> Tensor | None:
        """b_k for the offsets k = i + past - j, from the last key on.

        Entry r belongs to i - j = r - (n_k - 1): j - i - past = n_k - 1 - past - r. Some
        releases give the places of the queries instead of past.
        """
        if not is_ours(self.config):
            past: dict[str, Any] = {"past_seen_tokens": past_seen_tokens}
            if cache_position is not None:
                past = {"cache_position": cache_position}
            theirs: Any = super()
            return theirs.compute_bias(query_length, key_length, device=device, **past)
        if cache_position is not None:
            past_seen_tokens = cache_position[0]
        if not self.has_table():
            return None
        table = self.relative_attention_bias
        steps = torch.arange(query_length + key_length - 1, device=table.weight.device)
        later = (key_length - 1) - steps - past_seen_tokens
        return table(self._buckets(later)).T

    def _buckets(self, later: Tensor) -> Tensor:
        """The bucket of each j - i, by the model's own rule."""
        rule: Any = self._relative_position_bucket
        if type(self).__name__ == "UMT5Attention":
            return rule(later)
        return rule(
            later,
            bidirectional=not self.is_decoder,
            num_buckets=self.relative_attention_num_buckets,
            max_distance=self.relative_attention_max_distance,
        )


def why_not(module: nn.Module) -> str | None:
    """What stands against it: a release where the bias is made elsewhere."""
    rule = getattr(original(module), "compute_bias", None)
    names = set(inspect.signature(rule).parameters) if rule is not None else set()
    defined = sys.modules.get(original(module).__module__)
    known = names & {"past_seen_tokens", "cache_position"}
    if not known or not hasattr(defined, "ALL_ATTENTION_FUNCTIONS"):
        return "this release of transformers makes its bias elsewhere; use 5.22 or later"
    return None
