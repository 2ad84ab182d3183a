"""Benchmarks of Lode: each number beside what it should be compared with, measured in the same run."""
