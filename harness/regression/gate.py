"""The gate: one or more runs of a commit against a baseline, row by row.

First a row's speed-up over FA4 in the same run, then its share of the floor, see `harness.regression.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.records import Record, Status
from harness.regression.estimates import mean
from harness.regression.measures import GATED, Measure, is_ok, measure, rival_key
from harness.regression.noise import Noise
from harness.regression.runs import Refused, RowKey, Run
from harness.regression.verdicts import ALPHA, RESOLUTION, Change, Decision, Verdict, decide
from harness.rows import RIVAL

RANK = {Status.OK: 2, Status.UNTIMED: 1}  # of what a row can be; all others are 0


@dataclass(frozen=True)
class Settings:
    """What the user lets pass, as shares, and how often all rows together may be judged wrongly once.

    ``strict``: a row that is UNDECIDED fails the gate too.
    """

    tolerance: float = 0.03
    floor_tolerance: float = 0.10
    alpha: float = ALPHA
    strict: bool = False

    def of(self, which: Measure) -> float:
        """Tolerance of a measure."""
        return self.tolerance if which is Measure.SPEEDUP else self.floor_tolerance


@dataclass(frozen=True)
class Judged:
    """A change of one measure of a row: before and now (a speed-up, or a share of the floor), and the decision."""

    before: float
    now: float
    change: Change
    decision: Decision

    @property
    def ratio(self) -> float:
        """Speed now over before."""
        return math.exp(self.change.log)


@dataclass(frozen=True)
class GateRow:
    """A row of the baseline and what became of it. The first of ``measures`` is the one that decided."""

    record: Record
    verdict: Verdict
    reason: str
    measures: Mapping[Measure, Judged] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Such as ``self_u256 bwd``; with backend and scope where they aren't the usual."""
        record = self.record
        extra = [record.backend] * (record.backend != "jfa") + [record.scope] * (record.scope != "kernel")
        return " ".join([record.case, record.direction, *extra])


@dataclass(frozen=True)
class GateResult:
    """All rows with their verdicts; ``notes`` are what a reader should know beside."""

    rows: tuple[GateRow, ...]
    notes: tuple[str, ...]
    runs: tuple[Run, ...]
    baseline: Run
    strict: bool = False

    @property
    def failed(self) -> bool:
        """Whether any row fails the gate."""
        return any(map(self.fails, self.rows))

    def fails(self, row: GateRow) -> bool:
        """Whether a row fails the gate."""
        return row.verdict.fails or (self.strict and row.verdict is Verdict.UNDECIDED)

    def count(self, verdict: Verdict) -> int:
        """Rows of a verdict."""
        return sum(row.verdict is verdict for row in self.rows)

    @property
    def undecided_case_ids(self) -> tuple[str, ...]:
        """Cases that must be measured again."""
        return tuple(dict.fromkeys(row.record.case_id for row in self.rows if row.verdict is Verdict.UNDECIDED))


def gate(runs: Sequence[Run], baseline: Run, noise: Noise, settings: Settings = Settings(),
         remarks: Sequence[str] = ()) -> GateResult:
    """Judge ``runs`` (the first is whole, others repeat some of its cases) against ``baseline``.

    ``remarks`` are put before the result's notes.

    Raises `Refused` where the two can't be compared: another GPU or cache state.
    """
    first = runs[0]
    for run in runs:
        for column in ("device_type", "gpu", "cache"):
            if run.values(column) != baseline.values(column):
                raise Refused(f"{run.csv}: {column} is {_listed(run, column)}, the baseline {baseline.csv} is of "
                              f"{_listed(baseline, column)}; compare like with like")
    notes = [*remarks, *_notes(first, baseline, noise)]
    fixed, open_keys = _without_speed(runs, baseline)
    pending = {key: _changes(runs, baseline, noise, settings, key) for key in open_keys}
    flat = [(key, which) for key, changes in pending.items() for which in changes]
    decisions = dict(zip(flat, decide([pending[key][which][2] for key, which in flat], settings.alpha), strict=True))
    rows = []
    for key, record in baseline.by_key.items():
        if key in fixed:
            rows.append(GateRow(record, *fixed[key]))
        elif key in pending:
            judged = {which: Judged(*values, decisions[key, which]) for which, values in pending[key].items()}
            rows.append(GateRow(record, *_verdict(first, baseline, key, judged)))
    return GateResult(tuple(rows), tuple(notes), tuple(runs), baseline, settings.strict)


def _without_speed(runs: Sequence[Run], baseline: Run) -> tuple[dict[RowKey, tuple[Verdict, str]], list[RowKey]]:
    """Rows judged by their status alone, and the keys of those whose speed is to be judged.

    A row that fails in any of the runs, a re-run too, has failed.
    """
    fixed: dict[RowKey, tuple[Verdict, str]] = {}
    timed = []
    for key, before in baseline.by_key.items():
        if key not in runs[0].by_key:
            fixed[key] = Verdict.MISSING, "the baseline has this row, the run has not"
            continue
        now = min((run.by_key[key] for run in runs if key in run.by_key), key=lambda each: RANK.get(each.status, 0))
        if RANK.get(now.status, 0) < RANK.get(before.status, 0):
            fixed[key] = Verdict.BROKEN, f"{now.status.value}: {now.message}; it was {before.status.value}"
        elif before.status is Status.OK and key[1] != RIVAL:
            timed.append(key)
    return fixed, timed


def _changes(runs: Sequence[Run], baseline: Run, noise: Noise, settings: Settings,
             key: RowKey) -> dict[Measure, tuple[float, float, Change]]:
    """Before, now and the change of each measure that both sides have."""
    changes = {}
    for which in GATED:
        now = [estimate for run in runs if (estimate := measure(run, key, which))]
        before = measure(baseline, key, which)
        if not now or before is None or (which is Measure.SPEEDUP and _rival_differs(runs[0], baseline, key)):
            continue
        scatter = noise.scatter(key, which)
        centred = scatter.centre is not None and baseline.run_id in noise.run_ids
        centre = scatter.centre if centred and scatter.centre is not None else before.value
        n_before = scatter.runs if centred else 1
        together = mean(now)
        between = scatter.sd * math.sqrt(1 / n_before + 1 / len(now))
        within = math.hypot(together.error, before.error / math.sqrt(n_before))
        changes[which] = (math.exp(centre), math.exp(together.value),
                          Change(together.value - centre, max(between, within), scatter.dof, settings.of(which)))
    return changes


def _rival_differs(run: Run, baseline: Run, key: RowKey) -> bool:
    """Whether the two runs hold the row against different FA4s."""
    rival = rival_key(key)
    return (is_ok(run, rival) and is_ok(baseline, rival)
            and run.by_key[rival].backend_version != baseline.by_key[rival].backend_version)


def _verdict(run: Run, baseline: Run, key: RowKey,
             judged: Mapping[Measure, Judged]) -> tuple[Verdict, str, Mapping[Measure, Judged]]:
    """By the speed-up where there is one; a share of the floor that fell beyond its threshold overrules it.

    With the reason, and the measures again: first the one that decided.
    """
    speedup, share = judged.get(Measure.SPEEDUP), judged.get(Measure.FLOOR_SHARE)
    if speedup is None and share is None:
        return Verdict.BROKEN, "has neither a time of FA4 beside it nor a floor, so its speed can't be judged", judged
    share_is_slow = share is not None and share.decision.verdict is Verdict.SLOW
    if speedup is not None and (speedup.decision.verdict is Verdict.SLOW or not share_is_slow):
        return speedup.decision.verdict, _say(speedup, "against FA4") + _rival_hint(speedup, share), judged
    assert share is not None
    why = ("against FA4 it holds, so both got slower" if speedup is not None else
           "FA4 is of another version" if _rival_differs(run, baseline, key) else "no time of FA4 beside it")
    return (share.decision.verdict, f"{_say(share, 'against the floor')}; {why}",
            {which: judged[which] for which in reversed(GATED) if which in judged})


def _rival_hint(speedup: Judged, share: Judged | None) -> str:
    if speedup.decision.verdict is Verdict.SLOW and share is not None and share.ratio > 1 - (1 - speedup.ratio) / 4:
        return "; against the floor it holds, so look at FA4's own speed too"
    return ""


def _say(judged: Judged, against: str) -> str:
    low, high = judged.change.interval
    limit = 1 - math.exp(-judged.change.threshold)
    text = f"{judged.ratio - 1:+.1%} {against} ({low - 1:+.1%} to {high - 1:+.1%}), threshold {limit:.1%}"
    if judged.decision.verdict in (Verdict.SLOW, Verdict.FAST):
        return f"{text}, p {judged.decision.p_holm:.1g} over all rows"
    if judged.decision.verdict is Verdict.UNDECIDED:
        if judged.change.hides_too_much:
            return text + f": noise hides changes that matter (over {1 - math.exp(-RESOLUTION):.0%})"
        beyond = abs(judged.change.log) > judged.change.threshold
        return text + (", but not significant over all rows" if beyond else ", which the interval crosses")
    return text


def _notes(run: Run, baseline: Run, noise: Noise) -> list[str]:
    notes = []
    if not noise.rows:
        notes.append("no noise file stands beside the baseline: differences between runs are assumed, not measured "
                     "(harness noise measures them)")
    elif baseline.run_id not in noise.run_ids:
        notes.append("the noise file is not of the baseline's own A/A runs: it gives the scatter, the baseline's one "
                     "run the centre")
    for side, which in ((run, "run"), (baseline, "baseline")):
        if "True" in side.values("dirty"):
            notes.append(f"the {which}'s checkout differed from its commit {_listed(side, 'commit')}: what it measured "
                         "is in no commit")
    names = {record.case_id: record.case for record in baseline.records}
    for case_id, name in {record.case_id: record.case for record in run.records}.items():
        if case_id in names and names[case_id] != name:
            notes.append(f"case {names[case_id]} is called {name} in the run; it is the same work, id {case_id}")
    new = [key for key in run.by_key if key not in baseline.by_key]
    if new:
        cases = list(dict.fromkeys(run.by_key[key].case for key in new))
        notes.append(f"{len(new)} rows of the run are not in the baseline, and so not judged ({', '.join(cases[:5])}); "
                     "harness baseline update takes them in")
    better = [run.by_key[key].case for key, record in baseline.by_key.items()
              if key in run.by_key and RANK.get(run.by_key[key].status, 0) > RANK.get(record.status, 0)]
    if better:
        notes.append(f"{len(better)} rows have a time now and had none in the baseline, and so are not judged "
                     f"({', '.join(list(dict.fromkeys(better))[:5])})")
    for column in ("driver", "cuda", "torch", "triton", "backend_version", "config_hash"):
        if sorted(baseline.values(column)) != sorted(run.values(column)):
            notes.append(f"{column}: the baseline has {_listed(baseline, column)}, the run {_listed(run, column)}")
    return notes


def _listed(run: Run, column: str) -> str:
    return ", ".join(run.values(column)) or "none"
