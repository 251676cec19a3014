"""A numpy program becomes a Transformer, operation by operation."""
