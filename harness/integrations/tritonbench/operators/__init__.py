"""Operators for TritonBench, a module each: it takes an operator's name from what follows ``tritonbench.operators.``"""
