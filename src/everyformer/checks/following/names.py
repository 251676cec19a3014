"""Names of what a run computes: two runs that do the same give the same names.

A tensor is named by the operation that made it, with all arguments: those that are tensors
by their names, others as they are. So the name of an output says all that the run did for
it, in which order, whatever its numbers are. Tensors that are made of neither the input nor
weights are named by their numbers.
Exports write some things otherwise: no copies (`SAME`), masks in place of `is_causal`, keys
repeated for groups of heads, conditions that always hold. These have one name each.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

SAME = frozenset(
    ["alias", "detach", "clone", "lift_fresh", "lift_fresh_copy", "contiguous",
     "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "_to_copy"]
)  # fmt: skip
"""Operations whose result is known by its type and its shape."""

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
MASKS = (torch.bool, torch.uint8)

Place = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]


class Names:
    """Numbers for what is computed, shared by runs that are to be compared.

    Attributes:
        weights: Names of parameters, by where their numbers lie.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        """Name the parameters."""
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.weights = {_place(one): self.of("weight", k) for k, one in enumerate(weights)}

    def of(self, *key: Any) -> int:
        """The name of something."""
        return self._numbers.setdefault(key, len(self._numbers))

    def like(self, name: int, x: torch.Tensor, shape: Iterable[int]) -> int:
        """What has the numbers of something, in another shape or type."""
        return self.of("like", name, x.dtype, tuple(shape))

    def constant(self, x: torch.Tensor) -> int:
        """A tensor by its numbers."""
        data = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        digest = hashlib.sha256(data.view(torch.uint8).numpy().data).digest()
        return self.of("constant", x.dtype, tuple(x.shape), digest)


class Named(TorchDispatchMode):
    """Names what is computed while it is entered.

    What lies where something was written has another name than before.

    Attributes:
        calls: The operations, by the names of their results.
        views: The names among these of what has its numbers from another tensor.
        read: The first operation by the shape of whose result numbers are read.
    """

    def __init__(self, names: Names, given: torch.Tensor) -> None:
        """Begin with an input."""
        super().__init__()
        self.calls: dict[int, str] = {}
        self.views: set[int] = set()
        self.read = ""
        self._names = names
        self._known = {id(given): (given, names.of("x"))}  # kept alive: ids stay their own
        self._written: dict[int, int] = {}

    def name(self, x: torch.Tensor) -> int:
        """The name of a tensor."""
        known = self._known.get(id(x), (x, self._names.weights.get(_place(x))))[1]
        if known is None:
            known = self._names.constant(x)
        written = self._written.get(_memory(x))
        return known if written is None else self._names.of("written", known, written)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and name its results."""
        kwargs = kwargs or {}
        call = func.__name__.split(".")[0].rstrip("_")
        leaves, spec = tree_flatten((args, kwargs))
        held = [y for y in leaves if isinstance(y, torch.Tensor)]
        made = any(self._is_made(y) for y in held) or "empty" in call
        if not made:
            return func(*args, **kwargs)
        key = [self.name(y) if isinstance(y, torch.Tensor) else repr(y) for y in leaves]
        shape = held[0].shape if held else None  # before it may be changed
        always = self._always(call, held)
        found = func(*args, **kwargs)
        if torch.Tag.dynamic_output_shape in func.tags and _counts(call, held):
            self.read = self.read or call
        results = [y for y in tree_leaves(found) if isinstance(y, torch.Tensor)]
        first = results[0] if results else None
        if always is not None and first is not None and first.shape == always.shape:
            self._known[id(first)] = (first, self.name(always))
        elif first is not None and call in SAME and not func._schema.is_mutable:
            kept = first.dtype == held[0].dtype and first.shape == shape
            name = self._names.like(self.name(held[0]), first, first.shape)
            self._known[id(first)] = (first, self.name(held[0]) if kept else name)
        else:
            attends = self._attention(func, args, kwargs) if call == ATTENTION else None
            name = attends or self._names.of(call, *key, str(spec))
            self.calls[name] = call
            self.views |= {name} if func.is_view else set()
            self._note_written(func, args, kwargs, name)
            for k, one in enumerate(results):
                self._known[id(one)] = (one, self._names.of("result", k, name))
        return found

    def _is_made(self, x: torch.Tensor) -> bool:
        known = id(x) in self._known or _place(x) in self._names.weights
        return known or _memory(x) in self._written

    def _note_written(self, func: Any, args: Any, kwargs: Any, name: int) -> None:
        """Give new names to what lies where an operation writes."""
        given = _by_name(func, args, kwargs)
        for one in func._schema.arguments:
            if one.alias_info is None or not one.alias_info.is_write:
                continue
            for y in tree_leaves(given[one.name]):
                if isinstance(y, torch.Tensor):
                    place = _memory(y)
                    before = self._written.get(place)
                    self._written[place] = self._names.of("write", before, name)

    def _always(self, call: str, held: list[torch.Tensor]) -> torch.Tensor | None:
        """What `where` takes everywhere, on a condition that is known."""
        if call != "where" or len(held) != 3 or self._is_made(held[0]):
            return None
        return held[1] if bool(held[0].all()) and held[1].dtype == held[2].dtype else None

    def _attention(self, func: Any, args: Any, kwargs: Any) -> int:
        """The name of an attention with its mask written out, and a key for each head."""
        given = _by_name(func, args, kwargs)
        q, k, v = (given.pop(name) for name in ("query", "key", "value"))
        mask, causal = given.pop("attn_mask"), given.pop("is_causal")
        if mask is None:
            mask = q.new_zeros(q.shape[-2], k.shape[-2])
            if causal:
                mask = mask.masked_fill(torch.ones_like(mask).triu(1).bool(), -torch.inf)
            causal = False
        if not self._is_made(mask) and mask[..., :1, :1].numel() == 1:
            mask = mask.reshape(mask.shape[-2:])
        names = (self.name(q), self._for_heads(k, q), self._for_heads(v, q))
        rest = sorted((one, repr(value)) for one, value in given.items())
        return self._names.of(ATTENTION, *names, self.name(mask), causal, *rest)

    def _for_heads(self, k: torch.Tensor, q: torch.Tensor) -> int:
        """Keys or values, repeated as the heads of q share them."""
        name, (batch, heads, *rest) = self.name(k), k.shape
        if q.ndim != 4 or heads == q.shape[1]:
            return name
        groups = q.shape[1] // heads
        for shape in ((heads, 1), (heads, groups), (heads * groups,)):
            name = self._names.like(name, k, (batch, *shape, *rest))
        return name


def _place(x: torch.Tensor) -> Place:
    return x.data_ptr(), x.dtype, x.shape, x.stride()


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _counts(call: str, held: list[torch.Tensor]) -> bool:
    """Whether numbers decide how large a result is; an index by places has as many."""
    return call != "index" or any(y.dtype in MASKS for y in held[1:])


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operation, those that were left out too."""
    schema = func._schema.arguments
    given = {one.name: args[k] for k, one in enumerate(schema) if k < len(args)}
    return {one.name: one.default_value for one in schema} | given | kwargs
