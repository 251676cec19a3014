"""Masks for our attention function, by their shape, of n_q queries and n_k keys.

    None                nothing is padded; queries are the last n_q of n_k tokens
    (b, m)              False for keys that do not count. Under causal attention queries are
                        the last n_q of m tokens, and a fixed cache has room behind them
    (b, 1, m)           the same for ALiBi, where padding lies among the tokens
    (n + 1,)            sequences that are packed in one row, b = 1: where each begins, then
                        n. Causal within each, whatever the module says
    (b, 1, n_q, n_k)    any other pattern: False hides a pair

Whether attention is causal, the module that calls it says. All but the last take O(n)
memory. transformers calls `key_mask` once for each forward pass.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.captured import is_captured
from everyformer.ops.eager import is_plain, is_transformed

PADDING_IN_ALIBI = ("bloom", "falcon")
"""Models whose ALiBi counts the tokens that are not padded."""

NEVER_NONE = ("mpt",)
"""Models that compute with their mask: all keys are seen is a tensor, then."""

NOT_PACKED = (*PADDING_IN_ALIBI, *NEVER_NONE)
"""Models with ALiBi count tokens from the begin of a row, or compute with their mask."""


def key_mask(
    batch_size: int,
    q_length: int | None = None,
    kv_length: int = 0,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    config: Any = None,
    device: Any = None,
    **options: Any,
) -> Tensor | None:
    """The mask, as `transformers.masking_utils` asks its mask functions for it."""
    library = _masking()
    causal = mask_function is library.causal_mask_function or (
        # A window that is wider than all there is, and nothing else on top of it.
        kv_length < (options.get("local_size") or 0)
        and bool(options.get("allow_is_causal_skip"))
    )
    if q_length is None:  # transformers 4 tells the places of the queries instead
        places = options["cache_position"]
        q_length, q_offset = places.shape[0], places[0]
    kind = getattr(config, "model_type", None)
    moving = isinstance(q_offset, Tensor)
    if moving and _is_readable(q_offset):
        moving, q_offset = False, int(q_offset)
    if not moving and kv_offset == 0 and attention_mask is None and kind not in NOT_PACKED:
        packed = _packed(mask_function, kv_length < (options.get("local_size") or 0))
        if packed is not None:
            return _begins(packed[0])
    known = causal or mask_function is library.bidirectional_mask_function
    if not known or moving or kv_offset != 0:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        if "cache_position" not in options:
            options |= {"q_length": q_length, "q_offset": q_offset}
        pairs = library.sdpa_mask(
            batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset,
            mask_function=mask_function, attention_mask=attention_mask, config=config,
            device=device, **options,
        )  # fmt: skip
        return ~pairs if kind in NEVER_NONE else pairs  # which hide where they are true
    keys = q_offset + q_length if causal else kv_length
    _check(batch_size, keys, kv_length, attention_mask)
    seen = None if attention_mask is None else attention_mask[:, :keys].to(torch.bool)
    if seen is not None and _is_readable(seen) and bool(seen.all()):
        seen = None
    if seen is None:
        if keys == kv_length and kind not in NEVER_NONE:
            return None
        return torch.ones(1, 1, dtype=torch.bool, device=device).expand(batch_size, keys)
    if kind in PADDING_IN_ALIBI and not (_is_readable(seen) and _in_one_piece(seen)):
        return seen[:, None, :]
    return seen


def _packed(mask_function: Any, in_window: bool) -> Tensor | None:
    """The number of each token's sequence, (1, n), if a mask is causal within sequences.

    transformers finds them by `position_ids` that begin anew.

    Args:
        mask_function: Of transformers.
        in_window: Whether a window, if there is one, is wider than all there is.
    """
    if torch.compiler.is_compiling():
        return None
    library = _masking()
    parts = _held(mask_function, library.and_masks, "mask_functions")
    if parts is None or len(parts) != 2:
        return None
    causal, sequence = parts
    if in_window:
        nothing = (None, None)
        overlay, causal = _held(causal, library.and_masks, "mask_functions") or nothing
        if _held(overlay, library.sliding_window_overlay, "sliding_window") is None:
            return None
    name = "packed_sequence_mask"
    number = _held(sequence, library.packed_sequence_mask_function, name)
    if causal is not library.causal_mask_function or number is None or len(number) != 1:
        return None
    found: Tensor = number
    return found


def _held(function: Any, maker: Any, name: str) -> Any:
    """What a function keeps under a name, if another one has made it; else None."""
    code = getattr(function, "__code__", None)
    if code is None or code not in maker.__code__.co_consts or name not in code.co_freevars:
        return None
    return function.__closure__[code.co_freevars.index(name)].cell_contents


def _begins(number: Tensor) -> Tensor:
    """Where the sequences of these ascending numbers begin, then n; n + 1 numbers in all.

    Their count is known to the GPU alone: beyond it there is n, again and again.
    """
    n = number.shape[0]
    tokens = torch.arange(n + 1, device=number.device, dtype=torch.int32)
    begins = torch.ones(n + 1, dtype=torch.bool, device=number.device)
    begins[1:n] = number[1:] != number[:-1]
    return tokens.masked_fill(~begins, n).sort().values


def _masking() -> Any:
    """`transformers.masking_utils`: whoever calls has imported it."""
    return sys.modules["transformers"].masking_utils


def _is_readable(x: Tensor) -> bool:
    """Whether its numbers may decide what is done.

    They may not while somebody compiles, traces or captures, nor under `torch.func.vmap`.
    """
    return is_plain(x) and not is_transformed() and not is_captured(x)


def _in_one_piece(seen: Tensor) -> bool:
    """Whether the keys that count follow one another, in each sequence."""
    begins = seen[:, :1].long().sum(-1) + (seen[:, 1:] & ~seen[:, :-1]).sum(-1)
    return bool((begins <= 1).all())


def _check(b: int, keys: int, kv_length: int, mask: Tensor | None) -> None:
    wrong = ""
    if keys > kv_length:
        wrong = f"{keys} tokens are more than the {kv_length} that the mask or cache holds"
    elif mask is not None and (mask.dim() != 2 or mask.shape[0] != b):
        wrong = f"attention_mask has shape {tuple(mask.shape)} for {b} sequences"
    elif mask is not None and not keys <= mask.shape[1] <= kv_length:
        wrong = f"attention_mask has {mask.shape[1]} columns for {keys} keys"
    if wrong:
        msg = (
            f"{wrong}. Give attention_mask of shape (sequences, keys), with a column for "
            "each key, those in the cache first."
        )
        raise InputError(msg)
