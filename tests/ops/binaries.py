"""Compile kernels for an H100 or H200, which need not be there.

A script of its own: Triton interprets kernels in the process of the tests.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from everyformer.ops.launching import Tiles
from everyformer.ops.sparse_attention import tuning
from everyformer.ops.toeplitz_attention.tuning import HALF

star: Any = import_module("everyformer.ops.sparse_attention.kernels.star")
toeplitz: Any = import_module("everyformer.ops.toeplitz_attention.kernels")

FLOATS = {"READY", "LSE", "PART", "PART_LSE", "TABLE", "DELTA", "STRIPS_B", "STRIPS_C"}
KINDS = {"PADDED": "*i8", "SEED": "*i64", "BEGIN": "*i32", "END": "*i32"}


def kind(name: str, constants: dict[str, Any]) -> str:
    """The type of an argument."""
    if name in constants:
        return "constexpr"
    if name in FLOATS:
        return "*fp32"
    if name.isupper() and name not in ("H", "B"):
        return KINDS.get(name, "*bf16")
    return "fp32" if "scale" in name or name == "growth" else "i32"


def compiled(kernel: Any, constants: dict[str, Any], **options: int | None) -> Any:
    """The binary for bf16 heads of size 64."""
    kinds = {name: kind(name, constants) for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    even = [
        name
        for name in kinds
        if kinds[name].startswith("*")
        or (name[:6] in ("stride", "width") and name not in constants)
    ]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in even},
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def binaries() -> Iterator[Any]:
    """Of the star with padding and dropout, of diagonals in two ways, of Toeplitz dK."""
    ring = tuning.ring_for(torch.bfloat16, 64)
    heads = {"D": 64, "BLOCK_D": 64, "PRECISION": "tf32", "HAS_PAD": True}
    for kernel in (star._forward_kernel, star._backward_kernel):
        constants = {**heads, "T": ring["T"], "DROP": True}
        yield compiled(kernel, constants, num_warps=ring["num_warps"])
    tiles: Tiles = HALF[64].diagonal
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    kernel = toeplitz.diagonal_kernel
    flags = ("CAUSAL", "SHIFTED", "HAS_MASK", "ADDS", "PACKED", "DROPS", "EVEN")
    rows = {f"stride_{row}": 768 for row in ("qm", "kn", "vn", "dm")}
    every = ("HAS_BIAS", "HAS_GAIN", "NEEDS_BIAS", "NEEDS_GAIN")
    for on in ({"EVEN"}, {"CAUSAL", "SHIFTED", "PACKED", "DROPS"}):
        sizes = {"BM": tiles.queries, "T": tiles.keys, "GROUP": len(on), "LEAD": 256}
        constants = {**heads, **rows, **sizes}
        constants |= dict.fromkeys(every, True) | {flag: flag in on for flag in flags}
        yield compiled(kernel, {**constants, "ASSEMBLY": True}, **options)
    tiles = HALF[64].dkv
    sizes = {"BM": tiles.queries, "BN": tiles.keys, "GROUP": 1, "LEAD": 256}
    constants = {**heads, **rows, **sizes, "HAS_PAD": False, "ASSEMBLY": True}
    constants |= dict.fromkeys(("HAS_BIAS", "HAS_GAIN", "EVEN"), True)
    constants |= dict.fromkeys(flags[:-1], False)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    yield compiled(toeplitz.dkv_kernel, constants, **options, maxnreg=tiles.registers)


if __name__ == "__main__":
    for binary in binaries():
        products = binary.asm["ptx"].count("wgmma.mma_async")
        pairs = binary.asm["ptx"].count("ld.global.nc.v2.f32")
        numbers = products, pairs, binary.metadata.shared, binary.metadata.num_warps
        sys.stdout.write(" ".join(map(str, numbers)) + "\n")
