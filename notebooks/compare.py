# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Jagged attention: two runs compared
#
# Row by row: the speed of the later run over that of the earlier one, for all cases that both have (the same id, so the
# same lengths). Above 1 the later run is faster. Built from the two CSVs and the raw samples beside them, without a
# GPU. A gate that passes or fails is `harness gate`; this page is for reading.

# %%
from harness.report import compared, tables
from harness.report.run_data import read_run

# %% tags=["parameters"]
BEFORE = "../results/baselines/nvidia-h200/earlier/gem.csv"
AFTER = "../results/baselines/nvidia-h200/gem.csv"

# %% [markdown]
# ## By latency

# %%
comparison = compared.compare_runs(BEFORE, AFTER)
compared.verdict(comparison)

# %% [markdown]
# Geometric means over the cases:

# %%
compared.means(comparison)

# %% [markdown]
# What is not the same in the two runs:

# %%
compared.what_differs(comparison)

# %% [markdown]
# ## JFA over FA4, before and after
#
# Both sides of this ratio were measured in the same run, so it feels less of clock and temperature than a latency does.

# %%
by_speedup = compared.compare_speedups(BEFORE, AFTER)
compared.verdict(by_speedup)

# %%
compared.forest(by_speedup)

# %% [markdown]
# ## Rows that differ
#
# Those whose interval doesn't hold 1, the greatest slow-down first.

# %%
compared.changed_rows(comparison)

# %% [markdown]
# ## Headlines
#
# Before:

# %%
tables.headline_sentence(read_run(BEFORE))

# %% [markdown]
# After:

# %%
tables.headline_sentence(read_run(AFTER))
