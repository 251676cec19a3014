"""Small networks of every method, and files made of them by hand."""

import copy
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import everyformer as ef
from everyformer import patterns
from everyformer.bench.hostile import untraceable
from everyformer.certify.verify import NETWORK_FILE
from everyformer.files.network_file import FORMAT
from everyformer.files.tensors import read_tensors
from everyformer.targets import centring, prefix_mean, reverse

DTYPES = {"float64": "F64", "int64": "I64", "bool": "BOOL"}

BUILDERS: dict[str, Callable[[], ef.Built]] = {
    "Theorem 2": lambda: ef.construct(centring(2), grid=2),
    "Theorem 3": lambda: ef.construct(reverse(2), grid=2),
    "exact Theorem 2": lambda: ef.construct(
        centring(2), grid=2, method=ef.SelectiveShifts(softened=False)
    ),
    "exact Theorem 3": lambda: ef.construct(
        reverse(2), grid=2, method=ef.SelectiveShifts(softened=False)
    ),
    "urpe": lambda: ef.construct(reverse(2), grid=2, method="urpe"),
    "wide": lambda: ef.construct(reverse(2), grid=4, method="averaging"),
    "narrow": lambda: ef.construct(
        reverse(2), grid=3, method=ef.Averaging(variant="narrow")
    ),
    "two-step": lambda: ef.construct(
        reverse(2), grid=3, method=ef.Averaging(variant="two-step")
    ),
    "partition": lambda: ef.construct(reverse(1), grid=2, method="partition"),
    "sparse": lambda: ef.construct(
        prefix_mean(3), grid=2, method=ef.SparseShifts(patterns.star(3), softened=False)
    ),
    "declared": lambda: ef.construct(ef.Target(untraceable, 2, 1, lipschitz=1), grid=2),
}


@dataclass
class Parts:
    """A folder in pieces that can be changed: the certificate and the file of weights.

    Attributes:
        certificate: The content of certificate.json.
        description: What the weights' metadata say.
        tensors: The arrays as they lie on disk.
        header: Changes the header of the weights before it is written.
        values: The bytes of target_values.npy, or None.
    """

    certificate: Any
    description: Any
    tensors: dict[str, np.ndarray]
    values: bytes | None
    header: Callable[[dict[str, Any]], object] = lambda header: None

    def write(self, folder: Path) -> Path:
        """Write the files; the certificate is told the hash of the weights."""
        folder.mkdir(exist_ok=True)
        data = self.weights()
        (folder / NETWORK_FILE).write_bytes(data)
        certificate = copy.deepcopy(self.certificate)
        if isinstance(certificate, dict) and isinstance(certificate.get("weights"), dict):
            certificate["weights"]["sha256"] = hashlib.sha256(data).hexdigest()
        (folder / "certificate.json").write_text(json.dumps(certificate))
        if self.values is not None:
            (folder / "target_values.npy").write_bytes(self.values)
        return folder

    def weights(self) -> bytes:
        """A safetensors file, written without the library that would refuse to."""
        header: dict[str, Any] = {
            "__metadata__": {FORMAT: json.dumps(self.description)},
        }
        body = b""
        for name, array in self.tensors.items():
            data = np.ascontiguousarray(array).tobytes()
            header[name] = {
                "dtype": DTYPES[array.dtype.name],
                "shape": list(array.shape),
                "data_offsets": [len(body), len(body) + len(data)],
            }
            body += data
        self.header(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + body


@cache
def _parts(name: str, folder: Path) -> Parts:
    BUILDERS[name]().save(folder)
    found = read_tensors(folder / NETWORK_FILE)
    values = folder / "target_values.npy"
    return Parts(
        json.loads((folder / "certificate.json").read_text()),
        json.loads(found.metadata[FORMAT]),
        found.arrays,
        values.read_bytes() if values.exists() else None,
    )


def parts_of(name: str, folder: Path) -> Parts:
    """The pieces of a network of a method; a copy, to be changed."""
    return copy.deepcopy(_parts(name, folder / f"built {name}"))
