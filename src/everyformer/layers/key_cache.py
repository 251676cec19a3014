"""Keys and values that a layer has seen, so that every token is projected once."""

import weakref
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.offsets import check_positive

WHOLE = (torch.int32, torch.int64)
"""What numbers of sequences may be."""

FIRST_ROOM = 16
"""Tokens that a growing cache has room for at first; then it doubles."""


@dataclass(frozen=True)
class _Held:
    """What a cache knows.

    Attributes:
        layer: Whose keys they are.
        keys: [b, h, room, d].
        values: [b, h, room, d].
        length: Tokens among the room.
        padding: [b, length], or None where no token was padding.
        in_place: Whether nobody else looks at this memory, so that more may be written.
        context: The tokens, where they are a context, and the version of the tensor.
    """

    layer: weakref.ref[nn.Module]
    keys: Tensor
    values: Tensor
    length: int
    padding: Tensor | None = None
    in_place: bool = False
    context: tuple[Tensor, int | None] | None = None


class KeyCache:
    """What one causal layer knows of earlier tokens: `layer(x, cache=cache)`.

    The tokens of every call follow those of the calls before, and the outputs are those of
    one call with all of them. Without gradients, keys and values are written into memory
    that is reserved; with gradients every call copies them, so that autograd may keep what
    it saw. A call that fails changes nothing. The weights must stay the same meanwhile.

    With `context=` the cache holds keys and values of that context, made at the first call.

    Args:
        max_len: Room for so many tokens, reserved at the first call, and not more; None for
            a cache that grows.

    Example:
        >>> from everyformer.layers import RelativeAttention
        >>> layer, cache = RelativeAttention(8, 2, causal=True), KeyCache(max_len=16)
        >>> with torch.no_grad():
        ...     for token in torch.ones(3, 1, 8):
        ...         y = layer(token, cache=cache)
        >>> cache.length
        3
    """

    def __init__(self, max_len: int | None = None) -> None:
        if max_len is not None:
            check_positive(max_len=max_len)
        self.max_len = max_len
        self.clear()

    def clear(self) -> None:
        """Forget all tokens, the layer and the context."""
        self._held: _Held | None = None
        self._next: _Held | None = None

    def __copy__(self) -> "KeyCache":
        """A cache that goes on from here on its own: memory to be written is not shared."""
        twin = KeyCache(self.max_len)
        held = self._held
        if held is not None and held.in_place:
            held = replace(held, keys=held.keys.clone(), values=held.values.clone())
        twin._held = held
        return twin

    def __deepcopy__(self, memo: dict[int, object]) -> "KeyCache":
        """As `copy.copy`."""
        return self.__copy__()

    @property
    def length(self) -> int:
        """Number of tokens held."""
        return 0 if self._held is None else self._held.length

    def truncate(self, length: int) -> None:
        """Forget all tokens but the first `length`, to go on from there.

        Raises:
            InputError: If there are fewer, or they are a context.
        """
        held = self._held
        whole = isinstance(length, int) and not isinstance(length, bool)
        if not whole or not 0 <= length <= self.length or (held and held.context):
            msg = (
                f"length={length!r} is not between 0 and the {self.length} tokens held, or "
                "these are a context."
            )
            raise InputError(f"The cache cannot be cut: {msg}")
        if held is not None:
            padding = None if held.padding is None else held.padding[:, :length]
            self._held = replace(held, length=length, padding=padding)

    def reorder(self, rows: Int[Tensor, " b"]) -> None:
        """Sequence i becomes what sequence rows[i] was, as beam search asks for.

        Raises:
            InputError: If these are not numbers of sequences, or a context is held: reorder
                that, and make a new cache.
        """
        held = self._held
        if held is None:
            return
        if not (isinstance(rows, Tensor) and rows.dim() == 1 and rows.dtype in WHOLE):
            msg = (
                f"rows={rows!r} does not say which sequences go on. Give their numbers in "
                "a tensor of one dimension, int64."
            )
            raise InputError(msg)
        if held.context is not None:
            msg = "The cache holds a context. Reorder that, and give it a new KeyCache."
            raise InputError(msg)
        padding = held.padding
        self._held = replace(
            held,
            keys=held.keys.index_select(0, rows),
            values=held.values.index_select(0, rows),
            padding=None if padding is None else padding.index_select(0, rows),
            in_place=not torch.is_grad_enabled(),
        )

    def extended(
        self,
        layer: nn.Module,
        k: Float[Tensor, "b h n d"],
        v: Float[Tensor, "b h n d"],
        padding: Bool[Tensor, "b n"] | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and padding of all tokens, these last; `keep` makes it so.

        Raises:
            InputError: If they do not fit what is held, or there is no room.
        """
        self._check(layer, k)
        old, new = self.length, self.length + k.shape[2]
        held = self._held
        padding = _joined(None if held is None else held.padding, padding, k, old)
        if torch.is_grad_enabled():
            if held is not None:
                k = torch.cat([held.keys[:, :, :old], k], 2)
                v = torch.cat([held.values[:, :, :old], v], 2)
            keys, values, in_place = k, v, False
        else:
            keys, values, in_place = *self._with_room(k, new), True
            keys[:, :, old:new], values[:, :, old:new] = k, v
            k, v = keys[:, :, :new], values[:, :, :new]
        self._next = _Held(weakref.ref(layer), keys, values, new, padding, in_place)
        return k, v, padding

    def of_context(self, layer: nn.Module, context: Tensor) -> tuple[Tensor, Tensor] | None:
        """Keys and values of a context that is held; None where nothing is.

        Raises:
            InputError: If another context, tokens or another layer's keys are held.
        """
        held = self._held
        if held is None:
            return None
        self._check_layer(layer)
        kept = held.context
        if kept is None or kept[0] is not context or kept[1] != _version(context):
            what = "tokens" if kept is None else "another context, or it was changed"
            msg = (
                f"The cache holds the keys of {what}. Give the same tensor at every call, "
                "and a new KeyCache for a new one."
            )
            raise InputError(msg)
        return held.keys, held.values

    def take_context(self, layer: nn.Module, context: Tensor, k: Tensor, v: Tensor) -> None:
        """Hold the keys and values of a context; `keep` makes it so."""
        self.check_room(k.shape[2])
        kept = context, _version(context)
        self._next = _Held(weakref.ref(layer), k, v, k.shape[2], context=kept)

    def keep(self) -> None:
        """The call went well: its tokens belong to the past now."""
        if self._next is not None:
            self._held, self._next = self._next, None

    def check_room(self, more: int) -> None:
        """Refuse more tokens than there is room for.

        Raises:
            InputError: With the numbers.
        """
        if self.max_len is not None and self.length + more > self.max_len:
            msg = (
                f"The cache holds {self.length} tokens and was made for max_len="
                f"{self.max_len}, so that {more} more do not fit. Make it larger, or use "
                "KeyCache(), which grows."
            )
            raise InputError(msg)

    @staticmethod
    @contextmanager
    def unchanged_if_it_fails(caches: "Iterable[KeyCache]") -> Generator[None]:
        """Of several layers: if one of them fails, all forget what the call gave them."""
        before = [(cache, cache._held) for cache in caches]
        try:
            yield
        except BaseException:
            for cache, held in before:
                cache._held, cache._next = held, None
            raise

    def _with_room(self, k: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
        """Memory for so many tokens; what is held is copied where there was too little."""
        held = self._held
        if held is not None and held.in_place and held.keys.shape[2] >= wanted:
            locked = held.keys.is_inference() and not torch.is_inference_mode_enabled()
            if not locked:
                return held.keys, held.values
        size = max(2 * wanted, FIRST_ROOM) if self.max_len is None else self.max_len
        shape = (*k.shape[:2], size, k.shape[3])
        made = k.new_empty(shape), k.new_empty(shape)
        if held is not None:
            for x, y in zip(made, (held.keys, held.values), strict=True):
                x[:, :, : held.length] = y[:, :, : held.length]
        return made

    def _check(self, layer: nn.Module, k: Tensor) -> None:
        self._check_layer(layer)
        self.check_room(k.shape[2])
        held = self._held
        if held is None:
            return
        if held.context is not None:
            msg = "The cache holds the keys of a context. Use a new KeyCache for tokens."
            raise InputError(msg)
        wrong = [
            f"{name} {now} (the cache holds {then})"
            for name, now, then in (
                ("batch", k.shape[0], held.keys.shape[0]),
                ("dtype", k.dtype, held.keys.dtype),
                ("device", k.device, held.keys.device),
            )
            if now != then
        ]
        if wrong:
            msg = (
                f"The keys have {', '.join(wrong)}. A cache goes on with the sequences it "
                "began with: give those, or a new KeyCache."
            )
            raise InputError(msg)

    def _check_layer(self, layer: nn.Module) -> None:
        if self._held is not None and self._held.layer() is not layer:
            msg = (
                "The cache holds the keys of another layer. Every layer needs a KeyCache "
                "of its own."
            )
            raise InputError(msg)


def _joined(
    old: Tensor | None, new: Tensor | None, k: Tensor, length: int
) -> Tensor | None:
    """Padding of `length` tokens and of those of k; None where no token is padding."""
    if old is None and new is None:
        return None
    unpadded = k.new_zeros(k.shape[0], max(length, k.shape[2]), dtype=torch.bool)
    old = unpadded[:, :length] if old is None else old
    return torch.cat([old, unpadded[:, : k.shape[2]] if new is None else new], 1)


def _version(x: Tensor) -> int | None:
    """Changes with every change in place; unknown for tensors of inference mode."""
    return None if x.is_inference() else x._version


def check_cache(cache: object) -> None:
    """Refuse what is not a cache.

    Raises:
        InputError: With what was given.
    """
    if cache is not None and not isinstance(cache, KeyCache):
        msg = (
            f"cache is of type {type(cache).__name__}. Give an "
            "everyformer.layers.KeyCache, one for every layer."
        )
        raise InputError(msg)
