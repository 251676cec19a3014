"""URPE on a small BERT, in one line: equal tokens part.

Needs transformers. The model is built from a config; nothing is downloaded. Positions are
set to zero, so that only the gain after the softmax can tell tokens apart.
"""

import torch
from transformers import BertConfig, BertModel

from everyformer.layers import add_urpe, gain_share

torch.manual_seed(0)
config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
model = BertModel(config, add_pooling_layer=False).eval()
torch.nn.init.zeros_(model.embeddings.position_embeddings.weight)

x = torch.randn(32).expand(1, 12, 32)  # twelve equal tokens


def spread() -> float:
    """The largest difference between rows of the output."""
    with torch.no_grad():
        out = model(inputs_embeds=x).last_hidden_state[0]
    return float((out.max(dim=0).values - out.min(dim=0).values).max())


print(f"without URPE: {spread():.1e}")
add_urpe(model, max_len=64)
print(f"gains at 1:   {spread():.1e}")
print(gain_share(model))
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if name.endswith("urpe_gain.table"):
            parameter.normal_(1.0, 0.3)
print(f"gains drawn:  {spread():.1e}")
