"""What the files of a constructed network are called."""

NETWORK_FILE = "network.safetensors"
CERTIFICATE_FILE = "certificate.json"
VALUES_FILE = "target_values.npy"
