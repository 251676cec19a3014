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
from typing import Any, NamedTuple

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

SAME = frozenset(
    ["alias", "detach", "clone", "lift_fresh", "lift_fresh_copy", "contiguous",
     "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "_to_copy"]
)  # fmt: skip
"""Operations whose result is known by its type and its shape."""

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
OF_MEMORY = frozenset(
    ["as_strided", "as_strided_copy", "as_strided_scatter", "resize", "resize_as",
     "_reshape_alias"]
)  # fmt: skip
"""Operations that take numbers by where they lie: a copy may have them elsewhere."""

OF_TORCH = frozenset(["aten", "prim", "prims"])
"""Where operations of torch are; others may write anywhere."""

PLAIN: Any = torch.Tensor
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
        given = list(weights)
        self.weights = {_place(one): self.of("weight", k) for k, one in enumerate(given)}
        self._kept = [one.untyped_storage() for one in given]  # no other memory lies there

    def of(self, *key: Any) -> int:
        """The name of something."""
        return self._numbers.setdefault(key, len(self._numbers))

    def like(self, name: int, x: torch.Tensor, shape: Iterable[int]) -> int:
        """What has the numbers of something, in another shape or type."""
        return self.of("like", name, x.dtype, tuple(shape))

    def constant(self, x: torch.Tensor) -> int:
        """A tensor by its numbers."""
        data = x.detach().clone(memory_format=torch.contiguous_format)  # not shared
        data = data.resolve_conj().resolve_neg().reshape(-1)
        digest = hashlib.sha256(data.view(torch.uint8).numpy().data).digest()
        return self.of("constant", x.dtype, tuple(x.shape), digest)


class Named(TorchDispatchMode):
    """Names what is computed while it is entered.

    What lies where something was written has another name than before.

    Attributes:
        calls: The operations, by the names of their results.
        views: The names among these of what has its numbers from another tensor.
        read: The first operation by the shape of whose result numbers are read.
        hidden: Why something may have been computed that is not seen here; or "".
    """

    def __init__(self, names: Names, given: torch.Tensor) -> None:
        """Begin with an input."""
        super().__init__()
        self.calls: dict[int, str] = {}
        self.views: set[int] = set()
        self.read = ""
        self.hidden = ""
        self._names = names
        self._known: dict[int, _Known] = {}
        self._found: dict[int, tuple[torch.Tensor, Place]] = {}
        self._written: dict[int, int] = {}
        self._allocated = {memory(given): given.untyped_storage()}
        self._note_found([given])
        self._know(given, names.of("x"))

    def name(self, x: torch.Tensor) -> int:
        """The name of a tensor that a run gave."""
        self._note_place(x)
        return self._name_of(x)

    def _name_of(self, x: torch.Tensor) -> int:
        noted = self._known.get(id(x))
        known = noted.name if noted else self._names.weights.get(_place(x))
        written = self._written.get(memory(x))
        if known is None:
            known = self._names.constant(x)
            if written is not None:  # a view of before, which has the numbers of some place
                known = self._names.of("part", known, x.storage_offset(), x.stride())
        return known if written is None else self._names.of("written", known, written)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, and name its results."""
        kwargs = kwargs or {}
        call = _called(func)
        leaves, spec = tree_flatten((args, kwargs))
        held = [y for y in leaves if isinstance(y, torch.Tensor)]
        self._note_kinds(held)
        for one in held:
            self._note_place(one)
        made = any(self._is_made(y) for y in held) or "empty" in call
        if not made:
            found = func(*args, **kwargs)
            self._note_allocated(call, held, found)
            return found
        if func.namespace not in OF_TORCH:
            self.hidden = self.hidden or f"it calls {call}, and what that does is not seen"
        key = [self._name_of(y) if isinstance(y, torch.Tensor) else repr(y) for y in leaves]
        shape = held[0].shape if held else None  # before it may be changed
        targets = _targets(func, args, kwargs)
        layout = [_layout(y) for y in held if call in OF_MEMORY]
        layout += [
            (y.storage_offset(), y.stride()) for y in targets if id(y) not in self._known
        ]  # views of one constant may have the same numbers
        always = self._always(call, held)
        found = func(*args, **kwargs)
        self._note_allocated(call, held, found)
        if torch.Tag.dynamic_output_shape in func.tags and _counts(call, held):
            self.read = self.read or call
        results = [y for y in tree_leaves(found) if isinstance(y, torch.Tensor)]
        first = results[0] if results else None
        if always is not None and first is not None and first.shape == always.shape:
            self._know(first, self._name_of(always))
        elif first is not None and call in SAME and not func._schema.is_mutable:
            kept = first.dtype == held[0].dtype and first.shape == shape
            name = self._names.like(self._name_of(held[0]), first, first.shape)
            self._know(first, self._name_of(held[0]) if kept else name)
        else:
            attends = self._attention(func, args, kwargs) if call == ATTENTION else None
            name = attends or self._names.of(call, *key, str(spec), *layout)
            self.calls[name] = call
            self.views |= {name} if func.is_view else set()
            self._note_written(targets, name)
            for k, one in enumerate(results):
                self._know(one, self._names.of("result", k, name))
        return found

    def _know(self, x: torch.Tensor, name: int) -> None:
        self._known[id(x)] = _Known(name, _place(x), x, x.untyped_storage())

    def _note_place(self, x: torch.Tensor) -> None:
        """A tensor stays where an operation put it, and another is not put there."""
        if id(x) in self._found:
            moved = self._found[id(x)][1] != _place(x)
        else:
            moved = x.layout == torch.strided and memory(x) in self._allocated
        if moved:
            self.hidden = self.hidden or "it puts other memory in the place of a tensor's"

    def _note_found(self, found: Iterable[torch.Tensor]) -> None:
        self._found |= {id(one): (one, _place(one)) for one in found}

    def _note_kinds(self, held: list[torch.Tensor]) -> None:
        """What a class of tensors does with an operation is not seen."""
        for one in held:
            kind: Any = type(one)
            if kind.__torch_dispatch__ is not PLAIN.__torch_dispatch__:
                why = f"{kind.__name__} has operations of its own, which are not followed"
                self.hidden = self.hidden or why

    def _note_allocated(self, call: str, held: list[torch.Tensor], found: Any) -> None:
        """Results have memory of their own where no argument has it, too."""
        before = set() if call == "lift_fresh" else {memory(one) for one in held}
        results = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        self._note_found(results)
        for one in results:
            if memory(one) not in before:
                self._allocated[memory(one)] = one.untyped_storage()

    def _is_made(self, x: torch.Tensor) -> bool:
        known = id(x) in self._known or _place(x) in self._names.weights
        return known or memory(x) in self._written

    def _note_written(self, targets: list[torch.Tensor], name: int) -> None:
        """Give new names to what lies where an operation writes."""
        for y in targets:
            place = memory(y)
            own = self._allocated.get(place)
            if own is None or not own.resizable():  # that of an array is not
                why = "it writes into memory that no operation of it made"
                self.hidden = self.hidden or why
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
        names = (self._name_of(q), self._for_heads(k, q), self._for_heads(v, q))
        rest = sorted((one, repr(value)) for one, value in given.items())
        return self._names.of(ATTENTION, *names, self._name_of(mask), causal, *rest)

    def _for_heads(self, k: torch.Tensor, q: torch.Tensor) -> int:
        """Keys or values, repeated as the heads of q share them."""
        name, (batch, heads, *rest) = self._name_of(k), k.shape
        if q.ndim != 4 or heads == q.shape[1]:
            return name
        groups = q.shape[1] // heads
        for shape in ((heads, 1), (heads, groups), (heads * groups,)):
            name = self._names.like(name, k, (batch, *shape, *rest))
        return name


class _Known(NamedTuple):
    """A name, and where the numbers are that have it.

    The tensor and its memory are kept alive, so that their ids and places stay their own.
    """

    name: int
    place: Place
    tensor: torch.Tensor
    memory: torch.UntypedStorage


def _called(func: Any) -> str:
    """What an operation does, in place or not.

    Bits seen as another type are not numbers made of it: `view` has two meanings. What
    operations that are not torch's mean is known by all of their name alone.
    """
    if func.namespace != "aten" or func._overloadname == "dtype":
        return str(func)
    return func.__name__.split(".")[0].rstrip("_")


def _place(x: torch.Tensor) -> Place:
    return x.data_ptr(), x.dtype, x.shape, x.stride()


def _layout(x: torch.Tensor) -> tuple[Any, ...]:
    return x.stride(), x.storage_offset(), x.untyped_storage().nbytes()


def storage(x: torch.Tensor) -> torch.UntypedStorage:
    """The memory that a tensor has numbers in, below what `torch.func` wraps around it."""
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x.untyped_storage()


def memory(x: torch.Tensor) -> int:
    """Which memory a tensor has numbers in: views of it have the same."""
    return storage(x)._cdata  # pyright: ignore[reportPrivateUsage]


def _counts(call: str, held: list[torch.Tensor]) -> bool:
    """Whether numbers decide how large a result is; an index by places has as many."""
    return call != "index" or any(y.dtype in MASKS for y in held[1:])


def _targets(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What an operation writes into."""
    given = _by_name(func, args, kwargs)
    written = [
        given[one.name]
        for one in func._schema.arguments
        if one.alias_info is not None and one.alias_info.is_write
    ]
    return [y for y in tree_leaves(written) if isinstance(y, torch.Tensor)]


def _by_name(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operation, those that were left out too."""
    schema = func._schema.arguments
    given = {one.name: args[k] for k, one in enumerate(schema) if k < len(args)}
    return {one.name: one.default_value for one in schema} | given | kwargs
