"""Trains `GemBlock` with each attention from equal weights on equal batches; compares losses, reports tokens/s.

    TRITON_INTERPRET=1 python -m examples.train_gem_block --tiny           # on a CPU: kernels in Triton's interpreter
    python -m examples.train_gem_block --plot curve.png --csv curve.csv    # on a GPU

The task: half of the event ids are liked, and which half is hidden. A user with label 1 draws liked events a little
more often than others, one with label 0 a little less. Every step has users of its own, so there is nothing to learn
but which events are liked. Exit status 1 if losses differ by more than bf16 explains.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from examples.gem_block import GemBlock, attentions
from kernels import JaggedLayout

LOSS_TOLERANCE = 0.02  # of a loss that starts near log 2: what bf16 roundings grow to within the steps
SIZES = {  # sequences a batch, longest, heads, head_dim, pooling rows, event ids, how much more often, steps
    "tiny": (8, 16, 1, 32, 2, 8, 0.35, 8),
    "real": (64, 1024, 4, 128, 32, 1000, 0.1, 40),
}
RATE = 0.1  # learning rate times the width, after a warm-up over a quarter of the steps


def batches(size: str, steps: int, device: torch.device) -> list[tuple[torch.Tensor, JaggedLayout, torch.Tensor]]:
    """``(events, lengths, labels)`` of each step; lengths are uniform in [1, longest], everything from one seed."""
    batch, longest, *_, events, more, _ = SIZES[size]
    generator = np.random.default_rng(0)
    ids = generator.permutation(events)  # the first half is liked
    made = []
    for _ in range(steps):
        lengths = generator.integers(1, longest + 1, batch)
        labels = generator.integers(0, 2, batch)
        liked = generator.random(lengths.sum()) < np.repeat(0.5 + more * (2 * labels - 1), lengths)
        drawn = ids[generator.integers(0, events // 2, len(liked)) + np.where(liked, 0, events // 2)]
        made.append((torch.from_numpy(drawn).to(device), JaggedLayout.from_lengths(lengths, device),
                     torch.from_numpy(labels).float().to(device)))
    return made


def train(name: str, size: str, steps: int, device: torch.device, compiled: bool) -> tuple[list[float], float]:
    """Losses of all steps, and tokens a second over those after the first quarter, which compile and warm up."""
    _, _, heads, head_dim, pool_rows, events, *_ = SIZES[size]
    torch.manual_seed(0)
    model = GemBlock(events, heads, head_dim, pool_rows, attentions[name]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE / (heads * head_dim))
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 4 / steps, total_iters=steps // 4)
    run = torch.compile(model, fullgraph=True, dynamic=True) if compiled else model
    losses, tokens, begun = [], 0, time.perf_counter()
    data = batches(size, steps, device)
    for step, (ids, lengths, labels) in enumerate(data):
        if step == steps // 4:
            _wait(device)
            tokens, begun = 0, time.perf_counter()
        loss = functional.binary_cross_entropy_with_logits(run(ids, lengths), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        warm_up.step()
        losses.append(loss.detach())
        tokens += lengths.total
    _wait(device)
    seconds = time.perf_counter() - begun
    return torch.stack(losses).tolist(), tokens / seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def write(path: Path, results: dict[str, tuple[list[float], float]], where: str) -> None:
    """Losses by step, with the tokens/s of the whole step and where they were measured."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["attention", "step", "loss", "tokens_per_s", "device", "torch"])
        rows.writerows([name, step + 1, f"{loss:.6f}", f"{speed:.0f}", where, torch.__version__]
                       for name, (losses, speed) in results.items() for step, loss in enumerate(losses))


def draw(path: Path, results: dict[str, tuple[list[float], float]], where: str) -> None:
    """Losses by step, one line an attention, with the device they ran on and the tokens/s of the whole step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for (name, (losses, speed)), style in zip(results.items(), ("-", "--", ":", "-."), strict=False):
        axes.plot(range(1, len(losses) + 1), losses, style, label=f"{name}: {speed:,.0f} tokens/s")
    axes.set(xlabel="step", ylabel="loss", title=f"GemBlock, measured on {where}")
    axes.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a few steps of a size for Triton's interpreter")
    parser.add_argument("--steps", type=int, help="default: 8 of the tiny size, 40 of the real one")
    parser.add_argument("--attention", action="append", choices=[*attentions, "jfa+compile"],
                        help="default: jfa, sdpa, and fa4 where it is installed and there is a GPU")
    parser.add_argument("--csv", type=Path, help="write losses and tokens/s there")
    parser.add_argument("--plot", type=Path, help="draw them there")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = "tiny" if arguments.tiny else "real"
    steps = arguments.steps or SIZES[size][-1]
    names = arguments.attention or ["jfa", "sdpa", *(_installed() if device.type == "cuda" else [])]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    if where == "a CPU" and any(name.startswith("jfa") for name in names):
        where += ", JFA in Triton's interpreter"
    print(f"GemBlock, {size} size, torch {torch.__version__}, on {where}", flush=True)
    results: dict[str, tuple[list[float], float]] = {}
    worst = 0.0
    for name in names:
        losses, speed = train(name.removesuffix("+compile"), size, steps, device, name.endswith("+compile"))
        results[name] = losses, speed
        apart = max(abs(one - other) for one, other in zip(losses, results[names[0]][0], strict=True))
        worst = max(worst, apart)
        print(f"{name:12} loss {losses[0]:.4f} -> {losses[-1]:.4f}  {speed:10,.0f} tokens/s  "
              f"at most {apart:.1e} from {names[0]}", flush=True)
        if arguments.csv:
            write(arguments.csv, results, where)
        if arguments.plot:
            draw(arguments.plot, results, where)
    if worst > LOSS_TOLERANCE:
        print(f"losses differ by {worst:.4f}, more than {LOSS_TOLERANCE}", file=sys.stderr)
        return 1
    return 0


def _installed() -> list[str]:
    try:
        import flash_attn.cute  # noqa: F401
    except ImportError:
        return []
    return ["fa4"]


if __name__ == "__main__":
    sys.exit(main())
