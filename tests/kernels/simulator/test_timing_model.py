"""The timing model: conservation, monotony, limits, and that ghosts take the path that tensors take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

pytest.importorskip("greenlet")
pytest.importorskip("triton.language.extra.tlx")

from kernels import dispatch
from kernels.mask import Mask
from kernels.simulator.agents import Task
from kernels.simulator.jagged import Layout, make_tensors
from kernels.simulator.launcher import Simulator
from kernels.simulator.timing import Machine, load_machine, predict
from kernels.simulator.timing.choices import make_plan
from kernels.simulator.timing.clocks import TaskClock, run
from kernels.simulator.timing.engine import TimedMachine
from kernels.simulator.timing.ghosts import Ghost, LoadedInt
from kernels.simulator.timing.predict import simulate
from kernels.simulator.timing.resources import Shared

H200, B200 = load_machine("h200"), load_machine("b200")
FLAT = Layout((384,) * 6)
FAST: dict[str, float] = dict.fromkeys(("issue", "fma", "alu", "mufu", "smem_bytes", "port_bytes"), 1e9)
FAST |= dict.fromkeys(
    ("chain", "port_clocks", "tensor_clocks", "wait_clocks", "wake_clocks", "arrive_clocks", "sync_clocks",
     "fence_clocks", "issue_clocks", "shuffle_clocks", "l2_clocks", "hbm_clocks", "load_clocks", "l1_clocks",
     "launch_us", "tensor_load"), 0.0)


def _engine(name: str, layout: Layout, direction: str, machine: Machine, options: dict[str, object] | None = None,
            ) -> TimedMachine:
    kernels, problem = dispatch.load(name), layout.problem()
    made = kernels.make_options(direction, options) if options else None  # type: ignore[arg-type]
    plan = make_plan(name, problem, direction, made, None, machine, 10_000)  # type: ignore[arg-type]
    return simulate(kernels, plan, direction, machine, made, None, record=True)  # type: ignore[arg-type]


CALLS = [("hopper", "fwd", {"variant": "solo64"}), ("hopper", "fwd", {"variant": "pair128"}),
         ("hopper", "bwd", {}), ("hopper", "bwd", {"owned_blocks": 0}),
         ("blackwell", "fwd", {}), ("blackwell", "bwd", {})]


@pytest.mark.parametrize(("name", "direction", "options"), CALLS)
def test_no_unit_is_busy_longer_than_the_kernel_takes(name, direction, options):
    machine = H200 if name == "hopper" else B200
    engine = _engine(name, FLAT, direction, machine, options)
    busy = engine.sms[0].busy()
    assert engine.matmuls
    for unit, clocks in busy.items():
        assert clocks <= engine.time * 1.000001, unit
    for _, _, start, length, _ in engine.spans:
        assert 0 <= start <= start + length <= engine.time * 1.000001


@pytest.mark.parametrize(("name", "direction", "options"), CALLS)
def test_more_work_takes_longer(name, direction, options):
    machine = (H200 if name == "hopper" else B200).changed(sms=2)
    sizes = [Layout((192,) * 2), Layout((192,) * 4), Layout((512,) * 4), Layout((1024,) * 4)]  # none done by pairs
    times = [predict(name, size.problem(), direction, machine, options or None).ms for size in sizes]
    assert times == sorted(times)
    assert times[-1] > 8 * times[0]


@pytest.mark.parametrize("figure", ["hbm_tbps", "l2_bytes", "tensor_flops", "issue", "clock_mhz"])
def test_a_slower_machine_takes_longer(figure):
    machine = H200.changed(sms=2)
    problem = Layout((700, 512, 90, 1000), heads_q=2, heads_kv=1).problem()
    slow = predict("hopper", problem, "fwd", machine.changed(**{figure: getattr(machine, figure) / 500}))
    assert slow.ms > predict("hopper", problem, "fwd", machine).ms


def test_matmul_bound_reaches_the_tensor_cores_floor():
    layout = Layout((2048,) * 2)
    machine = H200.changed(sms=2, **FAST, hbm_tbps=1e6, l2_bytes=1e9)
    for direction, products in (("fwd", 2), ("bwd", 5)):
        floor_ms = 2.0 * products * 128 * 2048**2 * 2 * 2 / (2 * machine.tensor_flops * machine.clock_mhz * 1e6) * 1e3
        found = predict("hopper", layout.problem(), direction, machine)  # type: ignore[arg-type]
        assert floor_ms <= found.ms < 1.06 * floor_ms
        assert found.bound_by.startswith("tensor cores")


def test_memory_bound_reaches_the_bandwidth_floor():
    layout = Layout((64,) * 512)  # Q, K, V and O once each: one tile a sequence and head
    machine = H200.changed(sms=2, **FAST, hbm_tbps=0.5, tensor_flops=1e9, l2_bytes=1e9)
    found = predict("hopper", layout.problem(), "fwd", machine)
    floor_ms = 4 * 64 * 512 * 2 * 128 * 2 / (machine.hbm_tbps * 1e12) * 1e3
    assert 0.99 * floor_ms <= found.ms < 1.1 * floor_ms
    assert found.bound_by.startswith("HBM")


_NOTED = ("wait", "arrive", "expect", "named", "async_dot", "dot wait", "TMA", "commit", "store wait", "async load")


@contextmanager
def _noted() -> Iterator[Counter[str]]:
    """Counts what tasks do: waits, arrivals and issues, by kind."""
    counts: Counter[str] = Counter()
    note = Task.note

    def counting(task: Task, what: str) -> Task:
        if what.startswith(_NOTED):
            counts[" ".join(what.split("[")[0].split()[:2])] += 1
        return note(task, what)

    Task.note = counting  # type: ignore[method-assign]
    try:
        yield counts
    finally:
        Task.note = note  # type: ignore[method-assign]


@pytest.mark.parametrize(("name", "direction", "options"), [
    ("hopper", "fwd", {"variant": "solo64"}), ("hopper", "fwd", {"variant": "trio64"}),
    ("hopper", "fwd", {"variant": "pair128"}), ("blackwell", "fwd", {})])
@pytest.mark.parametrize("mask", [Mask(), Mask.make(causal=True)])
def test_ghosts_take_the_path_of_tensors(name, direction, options, mask):
    """One SM does everything, so that both see the same tiles."""
    layout = Layout((300, 130, 64), heads_q=2, heads_kv=1, mask=mask)
    machine = (H200 if name == "hopper" else B200).changed(sms=1)
    kernels = dispatch.load(name)
    made = kernels.make_options(direction, options) if options else None
    schedule = "zigzag"
    with _noted() as ghosts:
        plan = make_plan(name, layout.problem(), direction, made, schedule, machine, 10**6)
        simulate(kernels, plan, direction, machine, made, schedule)
    q, k, v, _ = make_tensors(layout, layout.problem())
    with _noted() as tensors, Simulator(0, "eager", arch=machine.arch, sms=1, resident=plan.resident, races=False):
        kernels.forward(layout.problem(), q, k, v, schedule=schedule, options=made)
    assert ghosts == tensors
    assert sum(ghosts.values()) > 100


def test_events_say_what_tasks_waited_for():
    found = predict("hopper", FLAT.problem(), "fwd", H200, {"variant": "pair128"}, events=True)
    assert {"wait", "arithmetic", "wgmma", "TMA load", "TMA store"} <= {event.name for event in found.events}
    stalls = {event.stall for event in found.events if event.name == "wait"}
    assert None not in stalls
    assert any(stall and "_full[" in stall for stall in stalls)
    assert predict("hopper", FLAT.problem(), "fwd", H200).events == ()


def test_shared_units_slow_those_that_want_too_much():
    shared = Shared()
    shared.add(0.0, "a", 100.0, (1.0, 0.0))
    shared.add(0.0, "b", 100.0, (1.0, 0.0))
    shared.add(0.0, "c", 100.0, (0.0, 0.5))
    assert shared.next() == pytest.approx(100.0)
    assert shared.finish(100.0) == ["c"]
    assert shared.next() == pytest.approx(200.0)
    assert set(shared.finish(200.0)) == {"a", "b"}
    assert shared.next() is None


def test_ghosts_cost_what_the_compiler_would_issue():
    clock = TaskClock("task", 4, 0.0)
    run(clock)
    scores = Ghost([64, 64], torch.float32)  # 32 elements a thread
    shifted = scores * 2.0 - Ghost([64, 1], torch.float32)
    assert clock.fma == 32  # one fused instruction each
    assert shifted.to(torch.bfloat16).dtype == torch.bfloat16
    assert clock.alu == 16  # two a conversion
    assert (shifted[:, None, :].shape, shifted.reshape([32, 128]).shape) == ([64, 1, 64], [32, 128])
    assert clock.alu == 16


def test_a_backward_step_loads_shared_memory_as_the_profiler_counted():
    """Wavefronts of a step on an H200, dQ added in memory (kernels/hopper/NOTES_BACKWARD_RUNS.md): matmuls'
    operands, dQ staged and read again, Q and dO arriving, lse and delta read by each warp, dS."""
    busy = [_engine("hopper", Layout((128,), (64 * steps,), 1, 1), "bwd", H200.changed(sms=1), {"direct_dq": False})
            .sms[0].busy() for steps in (10, 30)]
    a_step = {unit: (busy[1][unit] - busy[0][unit]) / 20 for unit in ("smem", "tensor")}
    assert a_step["smem"] == pytest.approx(2048 + 256 + 256 + 256 + 256 + 128, rel=0.01)
    assert a_step["tensor"] == pytest.approx(5 * 2 * 64 * 128 * 128 / 4096)


TURNS: dict[str, object] = {"turns": True, "owned_blocks": 1}


def test_nobody_waits_where_tiles_take_turns():
    """One CTA of two, on 6 sequences of 3 tiles: it looks at a counter for each tile but the opening ones."""
    engine = _engine("hopper", FLAT, "bwd", H200.changed(sms=2), TURNS)
    looks = [span for span in engine.spans if span[1] == "wait" and "counters[" in str(span[4])]
    assert len(looks) == 2 * FLAT.problem().num_heads_kv * 6 / 2
    assert all(length == pytest.approx(H200.wake_clocks) for *_, length, _ in looks)


def test_no_pass_zeroes_or_casts_what_takes_turns():
    problem = FLAT.problem()
    added, turns = ({kernel.name: kernel.ms for kernel in predict("hopper", problem, "bwd", H200.changed(sms=2), {
        **TURNS, "turns": on}).kernels if kernel.how == "bytes"} for on in (False, True))
    assert set(added) == {"prepare", "cast"}
    assert set(turns) == {"prepare"}
    zeroes = problem.layout_q.total * problem.num_heads_q * problem.head_dim * 4
    assert added["prepare"] - turns["prepare"] == pytest.approx(zeroes / H200.hbm_tbps / 1e9)


@pytest.mark.parametrize(("tiles", "times"), [(2, 1.0), (3, 1.0), (12, 4.0)])
def test_tiles_that_take_turns_read_at_three_times_unless_all_fits(tiles, times):
    problem = Layout((128 * tiles, 100, 100), heads_q=2, heads_kv=2).problem()
    found = []
    for turns, l2_mib in ((False, 1e-6), (True, 1e-6), (True, 1e6)):
        machine = H200.changed(sms=2, l2_mib=l2_mib)
        options = dispatch.load("hopper").make_options("bwd", {**TURNS, "turns": turns})
        plan = make_plan("hopper", problem, "bwd", options, None, machine, 10_000)
        found.append(plan.traffic.reuse["desc_do"].times[128 * tiles])
    assert found == pytest.approx([tiles, times, tiles], rel=1e-4)


@pytest.mark.parametrize(("options", "said"), [
    ({"counted": True, "owned_blocks": 1}, "counted: not modelled, as CTAs of all SMs wait"),
    ({"pairs": True}, "pairs: not modelled, as one CTA of a pair waits"),
])
def test_a_backward_that_waits_for_others_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        predict("hopper", FLAT.problem(), "bwd", H200.changed(sms=2), options)


def test_lengths_for_which_the_rule_takes_pairs_are_refused():
    machine = H200.changed(sms=2)
    assert predict("hopper", Layout((192,) * 4).problem(), "bwd", machine).ms > 0
    with pytest.raises(ValueError, match="pairs: not modelled"):
        predict("hopper", Layout((256,) * 4).problem(), "bwd", machine)
    alone = predict("hopper", Layout((256,) * 4).problem(), "bwd", machine, {"pairs": False})
    assert alone.ms > predict("hopper", Layout((192,) * 4).problem(), "bwd", machine, {"pairs": False}).ms


def test_a_fence_waits_for_the_stores_before_it_and_a_store_does_not():
    slow = H200.changed(smem_bytes=1.0)
    engine = _engine("hopper", Layout((64,), (64,), 1, 1), "fwd", slow, {"variant": "solo64"})
    fences = [span for span in engine.spans if span[1] == "fence"]
    assert [stall for *_, stall in fences] == ["its stores to shared memory"]  # of O, 64 x 128 in 16 bit
    assert fences[0][3] == pytest.approx(64 * 128 * 2, rel=0.01)


def test_a_loaded_scalar_is_waited_for_where_it_is_used():
    clock = TaskClock("task", 1, 10.0)
    run(clock)
    address = LoadedInt.make(5, 300.0) * 4 + 1
    assert clock.now == 10.0
    assert address == 21
    assert clock.now == 300.0


def test_figures_of_the_b200_are_not_measured():
    kinds = {name: getattr(B200, name).kind for name in Machine.model_fields if name not in ("name", "arch", "note")}
    assert {name for name, kind in kinds.items() if kind in ("measured", "fitted")} == set()


@pytest.mark.parametrize(("change", "said"), [
    (lambda text: text.replace("sms:", "sm:"), "sms: is missing"),
    (lambda text: text + "\nspeed: 3\n", "speed: unknown key"),
    (lambda text: text.replace("value: 132,", "value: many,"), "sms: value: expected a number from 0 on, got 'many'"),
    (lambda text: text.replace("kind: published", "kind: heard"), "kind: expected one of published, architectural"),
    (lambda text: "sms: [", "not YAML"),
    (lambda text: "", "expected a mapping of figures by name, got NoneType"),
    (lambda text: text.replace("mufu: {value: 16,", "mufu: {value: 0,"), "mufu: value: expected a number above 0"),
    (lambda text: text.replace("arch: 90", "arch: 100"), "tmem_read_bytes: value: expected a number above 0, got 0"),
    (lambda text: text.replace("value: 132,", "value: 131.5,"), "sms: value: expected a whole number, got 131.5"),
    (lambda text: text.replace("name: h200", 'name: ""'), "name: "),  # it would be in the name of every GPU
    (lambda text: text.replace("name: h200", "name: h200/x"), "name: "),
])
def test_a_bad_machine_file_is_one_clear_line(tmp_path, change, said):
    from kernels.simulator.timing import MACHINES

    path = tmp_path / "mine.yaml"
    path.write_text(change((MACHINES / "h200.yaml").read_text()))
    with pytest.raises(ValueError, match="mine") as error:
        load_machine(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_machine_file_that_is_no_text_is_one_clear_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"name: \xff")
    with pytest.raises(ValueError, match=r"mine\.yaml: can't be read"):
        load_machine(path)


@pytest.mark.parametrize(("name", "machine"), [("hopper", H200), ("blackwell", B200)])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
@pytest.mark.parametrize(("layout", "said"), [
    (Layout((64,) * 3, head_dim=32), "head_dim 32 is not one of 64, 128"),
    (Layout((0, 0)), "no sequence has rows of Q, or none has keys"),
    (Layout((0, 0), (64, 64)), "no sequence has rows of Q, or none has keys"),
    (Layout((64, 64), (0, 0)), "no sequence has rows of Q, or none has keys"),
])
def test_what_a_kernel_does_not_compute_has_no_time(name, machine, direction, layout, said):
    with pytest.raises(ValueError, match=said):
        predict(name, layout.problem(), direction, machine)


def test_an_implementation_of_another_architecture_is_refused():
    with pytest.raises(ValueError, match="hopper is for sm_90, b200 is sm_100"):
        predict("hopper", FLAT.problem(), "fwd", B200)
