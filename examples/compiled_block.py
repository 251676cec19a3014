"""A pre-LN Transformer block, written in numpy, as a Transformer with a proved bound.

The function below is a block as papers draw it: a norm, attention, a norm, an MLP, two skip
connections. It is compiled operation by operation; the listing says what every register
holds and which line below it computes, the trace what it holds for one x, with the error
that is proved. Then one weight is moved by 1e-3, and the proof is gone. Takes about ten
seconds.
"""

from dataclasses import replace

import numpy as np

import everyformer as ef

rng = np.random.default_rng(0)
query, key, value, first, second = (
    np.round(rng.uniform(-1, 1, shape) * 8) / 16
    for shape in ((4, 2), (4, 2), (4, 4), (4, 6), (6, 4))
)


def norm(x: np.ndarray) -> np.ndarray:
    """Mean 0 and variance 1 over the coordinates; 1/128 keeps the root from 0."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1 / 128)


def block(x: np.ndarray) -> np.ndarray:
    """Norm, attention, norm, tanh MLP; both with a skip connection."""
    z = norm(x)
    weights = np.exp((z @ query) @ np.swapaxes(z @ key, -1, -2))
    x = x + (weights / weights.sum(axis=-1, keepdims=True)) @ (z @ value)
    return x + np.tanh(norm(x) @ first) @ second


target = ef.Target(block, seq_len=3, d_model=4)
built = ef.construct(target, tol=1e-2, method="compile")
print(built.program)
print(str(built.certificate).splitlines()[0])
x = rng.random((1000, 3, 4))
print(f"measured: {np.abs(built.network(x) - block(x)).max():.1e}")

for inside in built.network.trace(x[0]).insides:
    step = inside.step
    if "tanh" in step.what or "attend" in step.what:
        off = np.abs(inside.value - inside.ideal).max()
        proved = f"off by {off:.0e}, proved {step.e + step.r:.0e}"
        print(f"block {step.slot // 2}: {step.line}: {inside.value[0]:.6f}, {proved}")

arrays = dict(built.network.arrays())
name = "stages.0.attention.W_O"
arrays[name] = arrays[name] * (1 + 1e-3)
spoiled = replace(built, network=built.network.with_arrays(arrays), proved=None)
print(str(spoiled.certificate.verdict), spoiled.certificate.obstacles[0])
