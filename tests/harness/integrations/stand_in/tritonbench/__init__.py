"""Stands in for TritonBench where it isn't installed: what harness.integrations.tritonbench uses of it, no more."""
