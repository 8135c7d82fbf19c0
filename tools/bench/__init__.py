"""Benchmarks, one script each: docs/benchmarks.md holds the figures of the last recorded run."""
