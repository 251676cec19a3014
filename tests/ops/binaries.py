"""Compile the kernels of the star for an H100 or H200, which need not be there.

A script of its own: Triton interprets kernels in the process of the tests.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from everyformer.ops.sparse_attention import tuning
from everyformer.ops.sparse_attention.kernels import star as jitted

star: Any = jitted  # its private names are for launches
RING = tuning.ring_for(torch.bfloat16, 64)
CONSTANTS: dict[str, Any] = {
    "D": 64, "BLOCK_D": 64, "T": RING["T"], "HAS_PAD": True, "DROP": True,
    "PRECISION": "tf32",
}  # fmt: skip


def kind(name: str) -> str:
    """The type of an argument."""
    if name in CONSTANTS:
        return "constexpr"
    if name in ("LSE", "PART", "PART_LSE"):
        return "*fp32"
    if name.isupper() and name != "H":
        return {"PADDED": "*i8", "SEED": "*i64"}.get(name, "*bf16")
    return "fp32" if "scale" in name or name == "growth" else "i32"


def compiled(kernel: Any) -> Any:
    """The binary for bf16 heads of size 64, with padding."""
    kinds = {name: kind(name) for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    pointers = [name for name in kinds if kinds[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={places[name]: value for name, value in CONSTANTS.items()},
        attrs={places[name]: [["tt.divisibility", 16]] for name in pointers},
    )
    return triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": RING["num_warps"]}
    )


if __name__ == "__main__":
    for one in (star._forward_kernel, star._backward_kernel):
        binary = compiled(one)
        products = binary.asm["ptx"].count("wgmma.mma_async")
        sys.stdout.write(f"{products} {binary.metadata.shared}\n")
