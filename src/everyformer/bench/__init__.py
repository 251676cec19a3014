"""Benchmarks: correct first, then timed; medians and ratios of one run."""
