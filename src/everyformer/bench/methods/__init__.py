"""What the benchmarks build with: for each method its settings, and its own benchmarks."""
