"""Benchmarks of compiled networks: sizes and errors, growth, and Tracr's programs."""
