"""Other ways to run the same stacked weights, for comparison."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from everyformer.model.network import Network

Runner = Callable[[np.ndarray], np.ndarray]


def eager_torch(network: Network) -> Runner:
    """PyTorch operators, block after block: what a framework user writes."""
    return _runner(network.to_torch())


def compiled_torch(network: Network) -> Runner:
    """torch.compile of the same module: a scan over the stacked weights."""
    torch = import_module("torch")
    return _runner(torch.compile(network.to_torch(), fullgraph=True))


def _runner(module: Any) -> Runner:
    torch = import_module("torch")

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return module(torch.from_numpy(x)).numpy()

    return run


def jax_scan(network: Network) -> Runner | None:
    """JAX lax.scan over the stacked weights, in float64, on the CPU; None without JAX."""
    if find_spec("jax") is None:
        return None
    jax = import_module("jax")
    jnp = import_module("jax.numpy")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platforms", "cpu")

    def attention(x: Any, w: dict[str, Any]) -> Any:
        tokens = x[..., None, :, :]
        query = tokens @ jnp.swapaxes(w["W_Q"], -1, -2) - w["b_Q"][..., None, :]
        key = tokens @ jnp.swapaxes(w["W_K"], -1, -2)
        value = tokens @ jnp.swapaxes(w["W_V"], -1, -2)
        shares = jax.nn.softmax(query @ jnp.swapaxes(key, -1, -2), axis=-1)
        return x + ((shares @ value) @ jnp.swapaxes(w["W_O"], -1, -2)).sum(-3)

    def feed_forward(x: Any, w: dict[str, Any]) -> Any:
        hidden = jnp.maximum(x @ w["W_1"].T + w["b_1"], 0)
        return x + (hidden @ w["W_2"].T + w["b_2"])

    steps: list[tuple[Any, dict[str, Any]]] = []
    for stage in network.stages:
        block = feed_forward if stage.attention is None else attention
        names = {name.split(".")[1]: jnp.asarray(a) for name, a in stage.arrays()}
        steps.append((block, names))

    def body(block: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda state, row: (block(state, row), None)

    @jax.jit
    def forward(x: Any, weights: list[dict[str, Any]]) -> Any:
        for (block, _), w in zip(steps, weights, strict=True):
            x, _ = jax.lax.scan(body(block), x, w)
        return x

    def run(x: np.ndarray) -> np.ndarray:
        moved = x if network.positions is None else x + network.positions
        return np.asarray(forward(jnp.asarray(moved), [w for _, w in steps]))

    return run
