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
# # Jagged attention: report of a run
#
# Built from the run's CSV, and from its `.run.json` where that lies beside it; no GPU is needed. Every figure says
# whether it was **measured** (on what), **modelled** (from what) or **published** (by whom).

# %%
from IPython.display import display

from harness.report import pictures, tables
from harness.report.ablations import ablation_directions, ablation_table
from harness.report.balance import balance_table
from harness.report.published import published_table, read_published
from harness.report.run_data import read_run
from harness.report.show import Note

# %% tags=["parameters"]
RUN = "../results/baselines/nvidia-h200/gem.csv"
ABLATIONS = None  # CSVs of ablation runs; None takes every ablation_*.csv beside RUN

# %%
run = read_run(RUN, ABLATIONS)
tables.headline_sentence(run)

# %% [markdown]
# ## Environment and method

# %%
tables.environment(run)

# %% [markdown]
# Every backend was checked against an fp64 oracle first: a wrong row has no time. Medians are of CUDA events (on a CPU,
# of the host's clock); the backends of a case take turns in blocks of samples, each in a process of its own.
# *Kernel* scope is the device work alone. *Operation* scope is what a training step pays: host schedules, expansion of
# a shared Q, autograd and launches count. FLOPs are those of visible pairs only; the backward counts 2.5 times the
# forward. In full: `docs/method.md`.
#
# The cases:

# %%
tables.shapes(run)

# %% [markdown]
# ## Headline
#
# Geometric means of the speed-up over FlashAttention-4 in the same run, over the cases that both have times for.

# %%
tables.headline(run)

# %%
pictures.run_plot(run, "speedup")

# %% [markdown]
# ### Operation scope

# %%
pictures.run_plot(run, "speedup", "operation")

# %% [markdown]
# ## Throughput of each case

# %%
pictures.run_plot(run, "tflops")

# %% [markdown]
# TFLOP/s of useful work, kernel scope; forward, then backward.

# %%
display(tables.throughput(run, "fwd"), tables.throughput(run, "bwd"))

# %% [markdown]
# ## Speed-up against length, density and batch

# %%
pictures.trends(run)

# %% [markdown]
# ## Roofline

# %%
pictures.roofline(run)

# %%
pictures.run_plot(run, "floor_share")

# %% [markdown]
# ## Where the time goes
#
# The kernel is measured in kernel scope, the whole in operation scope. What copying a shared Q to every sequence, or
# summing the gradients of the copies, must take at least is modelled from its bytes. The rest is the difference: the
# host's schedule, reading the offsets, autograd, launches. The two scopes are timed apart, so a small difference is
# within their noise.

# %%
pictures.time_parts(run)

# %% [markdown]
# ## Tile efficiency and padding waste
#
# Computed from the lengths; neither is a time.

# %%
pictures.run_plot(run, "padding_waste")

# %% [markdown]
# ## Load balance
#
# How evenly the four ways of dealing tiles spread a forward's work over the workers of the variant that ran. Modelled
# from the actual lengths with the kernels' own tile list; see `docs/tile_schedule.md`.

# %%
pictures.balance(run)

# %% [markdown]
# The most that a worker gets, over what each would get if all got the same (modelled; 1 is perfect):

# %%
balance_table(run)

# %% [markdown]
# ## Ablations

# %%
for path in run.ablations:
    display(Note(f"### {path.stem}"), pictures.ablation(path))
    for direction in ablation_directions(path):
        display(ablation_table(path, direction))
if not run.ablations:
    display(Note("No ablation run was given, and no `ablation_*.csv` lies beside the CSV."))

# %% [markdown]
# ## Published figures for the B200: not measured here
#
# What others published, for orientation. No B200 has run anything of this project. Versions, clocks and methods differ
# from those of the run above, so the two must not be divided by each other.

# %%
pictures.published()

# %%
published_table(read_published())

# %% [markdown]
# ## What did not run, and why
#
# Rows by backend and status:

# %%
tables.statuses(run)

# %%
tables.without_a_time(run)
