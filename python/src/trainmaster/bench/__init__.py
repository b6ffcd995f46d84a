"""Benchmarks of this package: `python -m trainmaster.bench`."""
