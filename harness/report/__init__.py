"""What the notebooks show: tables and figures from a run's files, and the page that they are built into.

The notebooks in ``notebooks/`` only call what stands here; nothing is computed in them.
"""
