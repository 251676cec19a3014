"""Sparse attention: the pixels of an image attend along rows, then along columns."""

# %% [markdown]
# A 2 x 2 image is a sequence of four tokens. No pixel ever attends to the one across the
# diagonal, and yet every output depends on all pixels: Theorem 1 of Yun et al. 2020b. The
# path through the pattern, 1 2 4 3, is found by itself. The same from the shell:
#
#     everyformer construct examples/contrast.py:target --grid 8 --method sparse \
#         --with pattern=axial --with rows=2 --with columns=2 -o out/

# %%
import numpy as np

import everyformer as ef
from everyformer import patterns


def contrast(x: np.ndarray) -> np.ndarray:
    """Every pixel minus the mean of the image; x has shape (batch, 4, 1)."""
    return x - x.mean(axis=-2, keepdims=True)


# %%
target = ef.Target(contrast, seq_len=4, d_model=1)

# %%
if __name__ == "__main__":
    built = ef.construct(target, grid=8, method=ef.SparseShifts(patterns.axial(2, 2)))
    print(built.plan)
    print(built.certificate)
    x = np.array([[0.1], [0.7], [0.4], [0.95]])  # four tokens as rows
    print("f(x) =", contrast(x).ravel())
    print("g(x) =", built.network(x).ravel())
