"""Benchmarks of Lode. Each run also measures the baseline that a result is compared with."""
