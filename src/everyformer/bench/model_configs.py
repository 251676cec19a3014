"""The models that `bench models` trains: real sizes, random weights, no dropout."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LONGEST = 2**17
"""Rows of the tables of positions; 512 and 1,024 in the released BERT and GPT-2."""


@dataclass(frozen=True)
class Sizes:
    """What a model is made of.

    Attributes:
        kind: Of its class and configuration in transformers.
        head: End of the name of its class.
        settings: Of its configuration.
        tiny: Those that differ on a CPU.
        decoder: Tokens that are predicted, as a share of those that are read; 0 if all are.
    """

    kind: str
    head: str
    settings: dict[str, Any]
    tiny: dict[str, Any]
    decoder: float = 0.0


_T5 = {
    "d_model": 768, "d_kv": 64, "num_layers": 12, "num_heads": 12, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
_TINY_T5 = {
    "vocab_size": 97,
    "d_model": 32,
    "d_kv": 16,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 2,
}
_BERT = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
_TINY_BERT = {
    "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 64,
}  # fmt: skip

MODELS: dict[str, Sizes] = {
    "T5-base": Sizes(
        "T5", "ForConditionalGeneration", {**_T5, "vocab_size": 32128, "d_ff": 3072},
        _TINY_T5, decoder=0.25,
    ),
    "mT5-base": Sizes(
        "MT5", "ForConditionalGeneration",
        {**_T5, "vocab_size": 250112, "d_ff": 2048, "feed_forward_proj": "gated-gelu"},
        _TINY_T5, decoder=0.25,
    ),
    "BLOOM-560m": Sizes(
        "Bloom", "ForCausalLM",
        {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16},
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 2},
    ),
    "DeBERTa-v3-base": Sizes(
        "DebertaV2", "ForMaskedLM",
        {
            **_BERT, "vocab_size": 128100, "relative_attention": True,
            "position_buckets": 256, "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm", "position_biased_input": False,
            "max_position_embeddings": 512, "max_relative_positions": -1,
            "type_vocab_size": 0,
        },
        _TINY_BERT,
    ),
    "BERT-base": Sizes(
        "Bert", "ForMaskedLM",
        {**_BERT, "vocab_size": 30522, "max_position_embeddings": LONGEST}, _TINY_BERT,
    ),
    "GPT-2": Sizes(
        "GPT2", "LMHeadModel",
        {
            "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12,
            "n_positions": LONGEST, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 4096},
    ),
}  # fmt: skip


def build(name: str, library: Any, device: str) -> Any:
    """A model in training, with random weights; a tiny one on a CPU."""
    sizes = MODELS[name]
    settings = dict(sizes.settings)
    if device == "cpu":
        settings |= sizes.tiny
        if "max_position_embeddings" in settings:
            settings["max_position_embeddings"] = 4096
    config = getattr(library, f"{sizes.kind}Config")(**settings)
    torch.manual_seed(0)
    with torch.device(device):
        model = class_of(name, library)(config)
    return model.train()


def class_of(name: str, library: Any) -> Any:
    """The class of a model in transformers."""
    return getattr(library, f"{MODELS[name].kind}{MODELS[name].head}")


def batch_of(name: str, model: Any, batch: int, n: int) -> dict[str, Tensor]:
    """Random tokens, and labels for the loss."""
    device = next(model.parameters()).device
    made = torch.Generator(device).manual_seed(1)

    def tokens(length: int) -> Tensor:
        size = (batch, length)
        top = model.config.vocab_size
        return torch.randint(1, top, size, generator=made, device=device)

    share = MODELS[name].decoder
    return {
        "input_ids": tokens(n),
        "labels": tokens(max(1, int(share * n)) if share else n),
    }


def blocks_of(model: Any) -> list[Any]:
    """The blocks of a model: compiled one by one, as they are all alike."""
    known = "GradientCheckpointingLayer"
    return [
        part
        for part in model.modules()
        if known in {kind.__name__ for kind in type(part).__mro__}
    ]
