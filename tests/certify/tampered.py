"""Certificates and weights that are changed on disk, with hashes brought up to date."""

import hashlib
import json
from pathlib import Path
from typing import Any

import everyformer as ef
from everyformer.certify.verify import NETWORK_FILE


def edit(folder: Path, *path: str | int, to: Any) -> None:
    """Change one value of certificate.json."""
    place = folder / "certificate.json"
    values = json.loads(place.read_text())
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    place.write_text(json.dumps(values))


def write_weights(folder: Path, network: ef.Network) -> None:
    """Other weights under the same certificate, which is told their hash."""
    network.save(folder / NETWORK_FILE)
    digest = hashlib.sha256((folder / NETWORK_FILE).read_bytes()).hexdigest()
    edit(folder, "weights", "sha256", to=digest)
