"""Benchmarks: one file for each workload, each figure beside a floor or a peer measured in the same run."""
