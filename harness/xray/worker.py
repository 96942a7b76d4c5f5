"""Compiles the jobs on its standard input: ``python -m harness.xray.worker ANSWERS``, started by `harness.xray.survey`.

A line of the file ANSWERS is the JSON list of a job's rows; it is complete when the next job begins.
"""

from __future__ import annotations

import json
import sys

from harness.xray import fa4, jfa
from harness.xray.survey import Job


def main() -> None:
    """A job a line in, a line of rows out."""
    with open(sys.argv[1], "w", encoding="utf-8", buffering=1) as answers:
        for line in sys.stdin:
            job = Job.from_json(line)
            if job.backend == fa4.NAME:
                rows = fa4.compile_rows(job.arch, job.config.shape)
            else:
                rows = jfa.compile_rows(job.impl, job.arch, job.config)
            answers.write(json.dumps([row.model_dump(mode="json") for row in rows]) + "\n")


if __name__ == "__main__":
    main()
