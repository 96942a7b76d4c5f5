"""What Nsight Compute watches: one call of each direction of a case, after it was checked and warmed up.

``python -m harness.profile_target``, with a JSON object on standard input: ``backend``, ``options``, ``device``,
``case``, ``directions``, ``check``. Only what follows the first `MARKER` kernel is profiled; another one stands before
each direction, so that its kernels can be told apart. Exit status 3, with the reason on stderr, if a row isn't `ok`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from harness.records import Status
from harness.worker import Session

MARKER = "spin_kernel"  # what `torch.cuda._sleep` launches
NOT_OK = 3
SCOPE = "kernel"


def main() -> int:
    """See the module."""
    job = json.load(sys.stdin)
    session = Session(job["backend"], job["options"], job["device"])
    hello = session.hello()
    if not hello["available"]:
        print(hello["reason"], file=sys.stderr)
        return NOT_OK
    events: list[dict[str, Any]] = []
    session.prepare(events.append, job["case"], [(direction, SCOPE) for direction in job["directions"]], job["check"])
    bad = [event for event in events if event["event"] == "row" and event["status"] != Status.OK.value]
    for event in bad:
        print(f"{event['direction']}: {event['status']}: {event['message']}", file=sys.stderr)
    if bad:
        return NOT_OK
    session.synchronize()
    torch.cuda.profiler.start()
    for direction in job["directions"]:
        torch.cuda._sleep(1)
        session.call(direction, SCOPE)()
    session.synchronize()
    torch.cuda.profiler.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
