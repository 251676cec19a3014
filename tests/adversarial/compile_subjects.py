"""Small compiled networks of every kind of step, as folders to tamper with."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

import everyformer as ef

Function = Callable[[np.ndarray], np.ndarray]


def centred(x: np.ndarray) -> np.ndarray:
    return x - x.mean(axis=-2, keepdims=True)


def shifted(x: np.ndarray) -> np.ndarray:
    return np.roll(x, 1, axis=-2)


def falling(x: np.ndarray) -> np.ndarray:
    return x.max(axis=-2, keepdims=True) - x


def ordered(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=-2)


def running(x: np.ndarray) -> np.ndarray:
    return np.cumsum(x, axis=-2) / 4


def bent(x: np.ndarray) -> np.ndarray:
    scales = np.array([[0.5], [1.0], [0.0]])
    return np.abs(x - 0.25) + 3 * np.maximum(x - 0.5, 0) + x * scales


def attended(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x @ np.swapaxes(x, -1, -2))
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def looking_back(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x @ np.swapaxes(x, -1, -2)) * np.tri(x.shape[-2])
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def filled(x: np.ndarray) -> np.ndarray:
    gaps = (x - np.swapaxes(x, -1, -2)) ** 2
    weights = np.exp(np.where(np.tri(x.shape[-2]) > 0, -gaps, -1e9))
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def divided_last(x: np.ndarray) -> np.ndarray:
    weights = np.exp(-((x - np.swapaxes(x, -1, -2)) ** 2)) * np.tri(x.shape[-2])
    return (weights @ (x + 0.5)) / weights.sum(axis=-1, keepdims=True)


def chosen(x: np.ndarray) -> np.ndarray:
    middle = np.where((x > 0.25) & (x < 0.75), x, np.where(x >= 0.75, 0.75, 0.25))
    return middle - np.where(x < 0.5, 0.5, x) / 3


def joined(x: np.ndarray) -> np.ndarray:
    t = np.abs(x - 0.5)
    huber = np.where(t < 0.25, (x - 0.5) ** 2, t / 2 - 0.0625)
    return huber + np.where(x > 0.25, np.sin(x), np.sin(x) + (x - 0.25) ** 2)


def multiplied(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[..., :1] * x[..., 1:], x[..., :1] + x[..., 1:] / 3], -1)


def softly(x: np.ndarray) -> np.ndarray:
    weights = np.exp(-((x - np.swapaxes(x, -1, -2)) ** 2))
    return weights / weights.sum(axis=-1, keepdims=True) @ x


def unnormalised(x: np.ndarray) -> np.ndarray:
    return np.exp(x @ np.swapaxes(x, -1, -2)) @ x


def softly_summed(x: np.ndarray) -> np.ndarray:
    weights = np.exp(-((x - np.swapaxes(x, -1, -2)) ** 2)) * np.tri(x.shape[-2])
    return weights @ (x - 0.25)


def normalised(x: np.ndarray) -> np.ndarray:
    c = x - x.mean(axis=-1, keepdims=True)
    return c / np.sqrt((c**2).mean(axis=-1, keepdims=True) + 1 / 128)


def layered(x: np.ndarray) -> np.ndarray:
    W = np.array([[0.5, -1.0], [0.75, 0.25]])
    return np.tanh(x @ W) @ W.T + x.mean(axis=-2, keepdims=True)


def damped(x: np.ndarray) -> np.ndarray:
    return x / (1 + (x**2).mean(axis=-2, keepdims=True))


def faded(x: np.ndarray) -> np.ndarray:
    return np.exp(-x) * np.log(1 + x)


def waved(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x) + np.cos(x.mean(axis=-2, keepdims=True))


SUBJECTS: dict[str, tuple[Function, int, int, float]] = {
    "mean": (centred, 3, 1, 1e-6),
    "shift": (shifted, 3, 1, 1e-6),
    "max - x": (falling, 3, 1, 1e-6),
    "sort": (ordered, 4, 1, 1e-6),
    "sort, log-depth": (ordered, 5, 1, 1e-6),
    "cumsum / 4": (running, 3, 1, 1e-6),
    "abs, relu, gates": (bent, 3, 1, 1e-6),
    "attention": (attended, 2, 2, 1e-6),
    "causal attention": (looking_back, 3, 1, 1e-6),
    "causal, divided last": (divided_last, 3, 1, 1e-4),
    "causal, other scores -1e9": (filled, 3, 1, 1e-4),
    "choices": (chosen, 2, 1, 1e-6),
    "curved pieces": (joined, 2, 1, 1e-2),
    "x1 x2": (multiplied, 2, 2, 1e-4),
    "soft attention": (softly, 2, 1, 1e-4),
    "sum of exponentials": (unnormalised, 2, 2, 1e-6),
    "causal sum, from squares": (softly_summed, 3, 1, 1e-3),
    "normalise": (normalised, 2, 2, 1e-2),
    "tanh MLP": (layered, 2, 2, 1e-6),
    "x / (1 + mean x^2)": (damped, 2, 1, 1e-3),
    "exp log": (faded, 2, 1, 1e-3),
    "sin, cos": (waved, 2, 1, 1e-5),
}
"""The function, n, d, tol. Tolerances are mild, so that prefixes are short."""


@cache
def build(name: str) -> ef.Built:
    function, n, d, tol = SUBJECTS[name]
    method = ef.Compile(variant="log-depth" if "log-depth" in name else "odd-even")
    return ef.construct(ef.Target(function, n, d), tol=tol, method=method)


def write_subjects(place: Path) -> dict[str, Path]:
    """Build every network once; each gets a folder with weights and certificate."""
    folders: dict[str, Path] = {}
    for number, name in enumerate(SUBJECTS):
        folders[name] = place / str(number)
        build(name).save(folders[name])
    return folders
