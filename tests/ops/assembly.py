"""What kernels read in assembly: the interpreter, which has none, reads the same places."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

NUMBERS: dict[str, tuple[Any, int]] = {
    "v2.f32": (tl.float32, 2),
    "f32": (tl.float32, 1),
    "b32": (tl.int32, 1),
    "b16": (tl.int16, 1),
    "u8": (tl.uint8, 1),
}
"""What an instruction reads: a kind of number, and how many that lie side by side."""


class Read:
    """What an instruction gave."""

    def __init__(self, found: list[Any]) -> None:
        self.found = found

    def get_result(self, number: int) -> Any:
        return self.found[number]


def interpreted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the interpreter run the reads; notes them, and those that are not aligned."""
    builder: Any = interpreter.InterpreterBuilder
    options = len(signature(builder.create_load).parameters) - 3  # more in Triton 3.6
    seen: list[str] = []

    def read(self: Any, code: str, _: str, values: Any, *rest: Any) -> Read:
        name = code.partition("ld.global.nc.")[2].split()[0]
        kind, count = NUMBERS[name]
        size = kind.primitive_bitwidth // 8
        places = values[0].data.astype(np.uint64)
        aligned = not (places % (size * count)).any()
        seen.append(name if aligned else f"{name} that is not aligned")
        found: list[Any] = []
        for number in range(count):
            at = places + np.uint64(number * size)
            pointers = interpreter.TensorHandle(at, tl.pointer_type(kind))
            one = self.create_load(pointers, *[None] * options, False)
            if name == "u8":  # into a register of 32 bits
                one = interpreter.TensorHandle(one.data.astype(np.int32), tl.int32)
            found.append(one)
        return Read(found)

    monkeypatch.setattr(builder, "create_inline_asm", read)
    return seen


def with_assembly(launch: Callable[..., Any]) -> Callable[..., Any]:
    """A launch of kernels as on a GPU, if they have assembly."""

    def launched(*given: Any, **options: Any) -> Any:
        if "ASSEMBLY" in options:
            options["ASSEMBLY"] = True
        return launch(*given, **options)

    return launched
