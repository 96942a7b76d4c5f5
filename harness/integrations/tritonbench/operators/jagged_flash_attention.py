"""TritonBench's operator `jagged_flash_attention`: its inputs are a config's cases, its benchmarks the backends.

Each backend is checked on each input against the fp64 oracle, in poisoned memory, before TritonBench times it:
`accuracy` is that check's outcome, and one that is wrong has no `tflops`. FLOPs are those of `harness.flops`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, get_args

import torch
from tritonbench.utils.triton_op import (
    REGISTERED_BENCHMARKS,
    BenchmarkOperator,
    Mode,
    register_benchmark,
    register_metric,
    register_x_val,
)

from harness.backends.base import Scope
from harness.cases import Case, expand
from harness.config import BackendConfig, load_config
from harness.errors import UserError
from harness.flops import attention_flops
from harness.records import Status
from harness.runner import choose_backends, choose_cases
from harness.worker import Session

BASELINES = ("fa4", "sdpa_loop", "padded")  # keys of backends; the first that the config has and that runs here
REFERENCE = BackendConfig(backend="sdpa_loop", name="sdpa_loop")  # the baseline of a config that has none of them
DIRECTIONS = {Mode.FWD: ("fwd",), Mode.FWD_NO_GRAD: ("fwd",), Mode.BWD: ("bwd",), Mode.FWD_BWD: ("fwd", "bwd")}


class Operator(BenchmarkOperator):
    """See the module. ``extra_args`` are ``--config FILE``, and what `own_parser` knows besides.

    Raises `UserError` for a config, case or baseline that isn't there, and for a backend's name that TritonBench's
    class has a use for.
    """

    DEFAULT_METRICS = ("latency", "tflops", "speedup", "accuracy")

    def __init__(self, tb_args: argparse.Namespace, extra_args: Sequence[str] | None = None) -> None:
        super().__init__(tb_args, list(extra_args or ()))
        own = own_parser().parse_args(extra_args)
        config = load_config(own.config)
        self.scope: str = own.scope
        self.cases = {case.case_id: case for case in choose_cases(expand(config), own.case)}
        self._check = config.check.model_dump(mode="json")
        self._sessions: dict[str, Session] = {}
        self._unusable: dict[str, str] = {}
        self._bound: Session | None = None
        self._wrong = False
        self._offer(choose_backends(config, None), tb_args.baseline)

    def _offer(self, backends: Sequence[BackendConfig], wanted: str | None) -> None:
        """Makes the backends benchmarks, one of them the baseline."""
        usable = {backend.name: self._usable(backend) for backend in backends}
        baseline = wanted or next((backend.name for key in BASELINES for backend in backends
                                   if backend.backend == key and usable[backend.name]), None)
        if baseline is None:
            backends = [*backends, REFERENCE]
            baseline, usable[REFERENCE.name] = REFERENCE.name, self._usable(REFERENCE)
        exact = self._only if self._only_match_mode == "exact" else []
        for option, name in [("--baseline", baseline), *(("--only", name) for name in exact)]:
            if name not in usable:
                raise UserError(f"{option}: no such backend {name!r}; allowed: {', '.join(usable)}")
        REGISTERED_BENCHMARKS.pop(self.name, None)  # of an earlier instance
        for backend in backends:
            name = backend.name
            if hasattr(BenchmarkOperator, name):
                raise UserError(f"backend: {name!r} is a name of TritonBench's own; give it another `name`")
            register = register_benchmark(operator_name=self.name, func_name=name, baseline=name == baseline,
                                          enabled=usable[name])
            setattr(type(self), name, register(_benchmark(name)))

    def _usable(self, backend: BackendConfig) -> bool:
        """Whether the backend can run in this process; if not, says why."""
        reason = "has an environment of its own, which only `harness run` gives it" if backend.environment else ""
        if not reason:
            session = Session(backend.backend, backend.options, self.device)
            self._sessions[backend.name] = session
            hello = session.hello()
            reason = "" if hello["available"] else hello["reason"]
        if reason:
            self._unusable[backend.name] = reason
            print(f"{backend.name}: not run: {reason}", file=sys.stderr)
        return not reason

    def bind(self, name: str, case: Case) -> Callable[[], None]:
        """A backend's forward on a case, after all that the mode runs was checked.

        Raises `NotImplementedError` where it declines or means nothing, `torch.cuda.OutOfMemoryError`, and
        `RuntimeError` where it fails; TritonBench turns these into its cells.
        """
        if self._bound is not None:
            self._bound.release()
        if reason := self._unusable.get(name) or case.declines(self.device):
            raise NotImplementedError(reason)
        self._bound = session = self._sessions[name]
        events: list[dict[str, Any]] = []
        session.prepare(events.append, case.to_json(), [(each, self.scope) for each in DIRECTIONS[self.mode]],
                        self._check)
        self._wrong = False
        for event in events:
            if event["event"] == "row" and event["status"] != Status.OK.value:
                self._heed(Status(event["status"]), f"{name} on {case.name}, {event['direction']}: {event['message']}")
        return _plain(session.call("fwd", self.scope))

    def _heed(self, status: Status, message: str) -> None:
        print(f"{status.value}: {message}", file=sys.stderr)
        if status is Status.WRONG:
            self._wrong = True
        elif status is Status.OOM:
            raise torch.cuda.OutOfMemoryError(message)
        elif status in (Status.UNSUPPORTED, Status.UNTIMED, Status.IMPORT_ERROR):
            raise NotImplementedError(message)
        else:
            raise RuntimeError(f"{status.value}: {message}")

    def get_input_iter(self) -> Iterator[tuple[str]]:
        """The cases' ids: tensors are made when a benchmark is bound, so that counting inputs makes none."""
        return ((case_id,) for case_id in self.cases)

    def get_bwd_fn(self, fwd_fn: Callable[[], None]) -> Callable[[], None]:
        """The backward alone of the benchmark bound last."""
        assert self._bound is not None
        return _plain(self._bound.call("bwd", self.scope))

    @register_x_val(label="case")
    def get_x_val(self, example_inputs: tuple[str]) -> str:
        """The case's name."""
        return self.cases[example_inputs[0]].name

    @register_metric()
    def flops(self, fn_name: str, example_inputs: tuple[str], metrics: Any) -> int:
        """FLOPs of the visible pairs, of all that the mode runs."""
        return sum(attention_flops(self.cases[example_inputs[0]], each) for each in DIRECTIONS[self.mode])

    @register_metric()
    def tflops(self, fn_name: str, example_inputs: tuple[str], metrics: Any) -> float | None:
        """None for a wrong result."""
        return None if self._wrong else super().tflops(fn_name, example_inputs, metrics)

    @register_metric()
    def accuracy(self, fn: Callable[[], None], baseline_fn: Callable[[], None]) -> bool:
        """Whether the benchmark bound last is within the oracle's limits (the baseline has no part in it)."""
        return not self._wrong


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"options: {message}")


def own_parser() -> argparse.ArgumentParser:
    """What the operator reads of ``extra_args``."""
    parser = _Parser(prog="jagged_flash_attention", allow_abbrev=False, add_help=False)
    parser.add_argument("--config", type=Path, required=True, help="config of the harness")
    parser.add_argument("--case", action="append", help="only this case, by id or name; may be repeated")
    parser.add_argument("--scope", choices=get_args(Scope), default="kernel", help="what of a backend is run")
    return parser


def _benchmark(name: str) -> Callable[[Operator, str], Callable[[], None]]:
    return lambda operator, case_id: operator.bind(name, operator.cases[case_id])


def _plain(call: Callable[[], None]) -> Callable[[], None]:
    """A function of its own, for TritonBench to write attributes to."""
    return lambda: call()
