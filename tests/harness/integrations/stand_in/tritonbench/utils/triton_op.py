"""`BenchmarkOperator`, its decorators and its result, as far as an operator meets them."""

import csv
from enum import Enum

import torch

from tritonbench.components.do_bench import do_bench_wrapper

REGISTERED_BENCHMARKS = {}
BASELINES = {}


class Mode(Enum):
    FWD = "fwd"
    BWD = "bwd"
    FWD_BWD = "fwd_bwd"
    FWD_NO_GRAD = "fwd_no_grad"


class Backend:
    def __init__(self, enabled):
        self.enabled = enabled


class Metrics:
    latency = tflops = speedup = accuracy = error_msg = None


def register_benchmark(operator_name=None, func_name=None, baseline=False, enabled=True):
    def decorator(function):
        REGISTERED_BENCHMARKS.setdefault(operator_name, {})[func_name] = Backend(enabled)
        if baseline:
            BASELINES[operator_name] = func_name
        return lambda self, *inputs: function(self, *inputs)
    return decorator


def register_metric():
    return lambda function: function


def register_x_val(label):
    return lambda function: function


class Result:
    def __init__(self, metrics, result):
        self.metrics, self.result = metrics, result

    def write_csv_to_file(self, file):
        rows = csv.writer(file, delimiter=";")
        names = list(self.result[0][1])
        rows.writerow(["case", *(f"{name}-{metric}" for name in names for metric in self.metrics)])
        for x, found in self.result:
            cells = []
            for one in found.values():
                values = [getattr(one, metric) for metric in self.metrics]
                cells += [one.error_msg, *values[1:]] if one.error_msg else values
            rows.writerow([x, *(float(cell) if isinstance(cell, bool) else getattr(cell, "p50", cell)
                                for cell in cells)])

    def write_json_to_file(self, file):
        file.write("{}")

    def __str__(self):
        return f"{len(self.result)} rows"


class PostInit(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.count = sum(1 for _ in made.get_input_iter())
        return made


class BenchmarkOperator(metaclass=PostInit):
    DEFAULT_METRICS = ("latency",)

    def __init__(self, tb_args, extra_args=None):
        self.name = type(self).__module__.partition("tritonbench.operators.")[2].split(".")[0]
        self.tb_args, self.device = tb_args, tb_args.device
        modes = {"fwd_no_grad": tb_args.fwd_no_grad, "fwd_bwd": tb_args.fwd_bwd, "bwd": tb_args.bwd}
        self.mode = Mode(next((mode for mode, given in modes.items() if given), tb_args.mode))
        self.required_metrics = tb_args.metrics.split(",") if tb_args.metrics else list(self.DEFAULT_METRICS)
        self._only = tb_args.only.split(",") if tb_args.only else []
        self._only_match_mode = tb_args.only_match_mode

    def run(self, warmup, rep):
        found = []
        try:
            for inputs in self.get_input_iter():
                assert all(isinstance(each, str) for each in inputs)
                found.append((self.get_x_val(inputs), self._row(inputs, warmup, rep)))
        finally:
            self.output = Result(self.required_metrics, found)

    def _row(self, inputs, warmup, rep):
        baseline = BASELINES[self.name]
        names = self._only or [name for name, backend in REGISTERED_BENCHMARKS[self.name].items() if backend.enabled]
        row, baseline_fn = {}, None
        for name in sorted(names, key=lambda name: name != baseline):
            row[name] = metrics = Metrics()
            try:
                fn = self._function(name, inputs)
                baseline_fn = fn if name == baseline else baseline_fn
                metrics.latency = do_bench_wrapper(fn, warmup, rep, None, device=self.device)
                if name != baseline and baseline_fn:
                    metrics.accuracy = self.accuracy(fn, baseline_fn)
                    metrics.speedup = row[baseline].latency.p50 / metrics.latency.p50
                metrics.tflops = self.tflops(name, inputs, metrics)
            except torch.cuda.OutOfMemoryError:
                metrics.error_msg = "CUDA OOM"
            except NotImplementedError:
                metrics.error_msg = "not supported"
            except Exception as error:
                if not self.tb_args.keep_going:
                    raise
                metrics.error_msg = str(error)
        return row

    def _function(self, name, inputs):
        forward = getattr(self, name)(*inputs)
        if self.mode in (Mode.FWD, Mode.FWD_NO_GRAD):
            forward._name = name
            return forward
        backward = self.get_bwd_fn(forward)
        backward._name = name
        return backward if self.mode is Mode.BWD else lambda: (forward(), backward())

    def tflops(self, fn_name, example_inputs, metrics):
        return self.flops(fn_name, example_inputs, metrics) / metrics.latency.p50 / 1e12 * 1e3
