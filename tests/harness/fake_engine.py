"""A timing model that says what its tests want: times in proportion to tokens, and a factor for each switch."""

from kernels.simulator import SimulationError
from kernels.simulator.timing import Event, KernelTime, Machine, Prediction

CONFIG = """\
name: tiny
seed: 3
backends:
  - {backend: jfa, options: {impl: hopper}}
  - {backend: jfa, name: jfa_unsorted, options: {impl: hopper, fwd: {schedule: none}}}
  - {backend: jfa, name: jfa_declined, options: {impl: hopper, fwd: {ping_pong: true, variant: pair128}}}
  - {backend: jfa, name: jfa_hurt, options: {impl: hopper, fwd: {variant: trio64}}}
  - {backend: jfa, name: jfa_b200, options: {impl: blackwell, fwd: {skip_rescale: false}}}
  - padded
directions: [fwd, bwd]
cases:
  - {name: short, mode: self, batch: 4, num_heads_q: 2, head_dim: 128, lengths: {kind: constant, value: 40}}
  - {name: long, mode: self, batch: 4, num_heads_q: 2, head_dim: 128, lengths: {kind: constant, value: 90}}
"""
EVENTS = (
    Event("sm0/cta0/loader", "issue K", 0.0, 0.5, None),
    Event("sm0/cta0/loader", "wait", 0.5, 2.0, "k_empty[0]"),
    Event("sm0/cta0/TMA load", "K", 0.25, 1.0, None),
    Event("sm0/cta0/TMA load", "V", 0.5, 1.0, None),  # in flight together with K
    Event("sm0/cta0/TMA load", "K", 1.25, 1.0, None),
    Event("sm1/cta1/loader", "wait", 0.0, 0.75, "scalar load"))


def machine(name="h200"):
    """A machine without figures."""
    if name not in ("h200", "b200"):
        raise ValueError(f"machine: {name} is neither a file nor one of b200, h200")
    return Machine.model_construct(name=name, arch=90 if name == "h200" else 100, note="made up", sms=132.0)


def predict(implementation, problem, direction, machine, options=None, schedule=None, *, events=False, budget=1500):
    """Stands in for `kernels.simulator.timing.predict`."""
    options = dict(options or {})
    if "ping_pong" in options:
        raise ValueError("ping_pong: these switches\nexclude each other")
    if options.get("variant") == "trio64":
        raise SimulationError("deadlock", "nothing can run")
    ms = problem.layout_q.total / 1000 * (1.25 if options.get("schedule") == "none" else 1.0)
    ms *= 2 if direction == "bwd" else 1
    return Prediction(
        machine.name, f"{implementation}/made up", direction, ms, (KernelTime("main", ms, "simulated"),), 1600.0,
        {"tensor cores": 0.625, "HBM": 0.25}, "tensor cores (62 %)", 1, 4, 9, 1.0, 0.05, EVENTS if events else ())


def install(monkeypatch):
    """Puts both in the place of the real ones."""
    from harness import model

    monkeypatch.setattr(model, "predict", predict)
    monkeypatch.setattr(model, "load_machine", machine)
