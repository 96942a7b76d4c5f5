"""A timing model on the simulator: the same tasks and source, every operation with a duration and a resource.

    from kernels.simulator.timing import load_machine, predict

    prediction = predict("hopper", problem, "fwd", load_machine("h200"))
    print(prediction.ms, prediction.bound_by)

Everything it says is *modelled*; docs/timing_model.md says how, and how far from measurements it was.
"""

from kernels.simulator.timing.machine import MACHINES, Figure, Machine, load_machine
from kernels.simulator.timing.predict import predict
from kernels.simulator.timing.prediction import RESOURCES, Event, KernelTime, Prediction

__all__ = ["MACHINES", "RESOURCES", "Event", "Figure", "KernelTime", "Machine", "Prediction", "load_machine", "predict"]
