"""TritonBench needs a package of this name; the stand-in's tables need none."""
