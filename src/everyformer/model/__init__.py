"""What a Transformer is, as data: architecture, weights, forward pass, files, exports."""
