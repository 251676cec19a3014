"""URPE in your model.

URPE on a small BERT, in one line: equal tokens part. Needs transformers. The model is built
from a config; nothing is downloaded.
"""

# %% [markdown]
# ## A model
#
# Positions are set to zero, so that only the gain after the softmax can tell tokens apart.

# %%
import torch
from transformers import BertConfig, BertModel

from everyformer.layers import add_urpe, gain_share

torch.manual_seed(0)
config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
model = BertModel(config, add_pooling_layer=False).eval()
torch.nn.init.zeros_(model.embeddings.position_embeddings.weight)

# %% [markdown]
# Twelve equal tokens: without positions attention cannot tell them apart, whatever its
# weights. The spread of the outputs is what rounding leaves.

# %%
x = torch.randn(32).expand(1, 12, 32)  # twelve equal tokens


def spread() -> float:
    """The largest difference between rows of the output."""
    with torch.no_grad():
        out = model(inputs_embeds=x).last_hidden_state[0]
    return float((out.max(dim=0).values - out.min(dim=0).values).max())


print(f"without URPE: {spread():.1e}")

# %% [markdown]
# ## One line
#
# `add_urpe` gives every attention layer a gain C for each offset, which multiplies the
# weights after the softmax. Gains begin at 1, so the model computes what it did before.

# %%
add_urpe(model, max_len=64)
print(f"gains at 1:   {spread():.1e}")
print(gain_share(model))

# %% [markdown]
# ## Gains that differ
#
# Training would move them; here they are drawn. Equal tokens part.

# %%
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if name.endswith("urpe_gain.table"):
            parameter.normal_(1.0, 0.3)
print(f"gains drawn:  {spread():.1e}")
