"""Bounds that carry their reasons. This package never imports `construct`."""
