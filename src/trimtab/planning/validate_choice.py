"""How good a choice of layout is: chosen by what was expected, judged by what was measured.

A decision: for one hardware, engine, model, precision, prompt and answer size, which layout makes the most output
tokens per second and device while a token takes at most the limit? The layout is chosen by corrected expectations over
the measured (layout, clients) pairs; whoever then runs it tunes its clients, so its worth is the best that any of its
measured rows reaches within the limit. Right: no other layout's best is better. Regret: the part of the best layout's
work that the chosen one does not do, all of it where it cannot keep the limit.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from trimtab.core.layout import Layout
from trimtab.planning.calibrate import Calibration, Run, calibrate
from trimtab.planning.correction import Phase, Prior
from trimtab.planning.measured import Group, Load
from trimtab.planning.propose import (
    Candidate,
    Proposal,
    propose_measurements,
    rank_layouts,
)

TPOT_LIMITS_MS: Final = (8.0, 12.0, 16.0, 24.0, 36.0, 60.0)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: the layout taken, the best one, and the share of its work that was forgone (0 to 1)."""

    group: Group
    limit_ms: float
    chosen: Layout
    best: Layout
    regret: float

    @property
    def right(self) -> bool:
        """No other layout would have done more."""
        return self.regret <= 1e-9


def decide_all(
    runs: Sequence[Run], priors: Mapping[Phase, Prior], measurements: int
) -> tuple[Decision, ...]:
    """Make every decision that has at least two layouts, each with up to `measurements` proposed ones allowed."""
    scenes: dict[tuple[Group, str, int, int], list[Run]] = defaultdict(list)
    for run in runs:
        load = run.row.load
        scenes[(run.row.group, load.precision, load.input_tokens, load.output_tokens)].append(run)
    decisions: list[Decision] = []
    for _, scene in sorted(scenes.items(), key=lambda item: item[0]):
        merged = _merge_repeats(scene)
        if len({run.row.load.layout for run in merged}) < 2:
            continue
        decisions.extend(
            _decide(merged, limit, priors, measurements)
            for limit in TPOT_LIMITS_MS
            if any(run.row.tpot_ms <= limit for run in merged)
        )
    return tuple(decisions)


def _merge_repeats(scene: Sequence[Run]) -> list[Run]:
    """Join runs of one layout and client count into one with geometric mean times."""
    same: dict[tuple[Layout, float], list[Run]] = defaultdict(list)
    for run in scene:
        same[(run.row.load.layout, run.row.load.clients)].append(run)
    return [
        msgspec.structs.replace(
            runs[0],
            row=msgspec.structs.replace(
                runs[0].row,
                tpot_ms=_mean([run.row.tpot_ms for run in runs]),
                ttft_ms=_mean([run.row.ttft_ms for run in runs]),
            ),
        )
        for _, runs in sorted(same.items())
    ]


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(math.log(value) for value in values) / len(values))


def _decide(
    runs: Sequence[Run], limit_ms: float, priors: Mapping[Phase, Prior], measurements: int
) -> Decision:
    measured: list[Run] = []
    if measurements:
        for proposal in propose_measurements(_candidates(runs, limit_ms, priors, ()), measurements):
            measured.append(_found(runs, proposal))
    candidates = _candidates(runs, limit_ms, priors, measured)
    chosen = rank_layouts(candidates)[0]
    worth: dict[Layout, float] = defaultdict(float)
    for run in runs:
        allowed = run.row.tpot_ms <= limit_ms
        done = work_per_device(run.row.load, run.row.ttft_ms, run.row.tpot_ms) if allowed else 0.0
        worth[run.row.load.layout] = max(worth[run.row.load.layout], done)
    best = max(sorted(worth), key=lambda layout: worth[layout])
    return Decision(
        group=runs[0].row.group,
        limit_ms=limit_ms,
        chosen=chosen,
        best=best,
        regret=1.0 - worth[chosen] / worth[best],
    )


def _found(runs: Sequence[Run], proposal: Proposal) -> Run:
    return next(
        run
        for run in runs
        if run.row.load.layout == proposal.layout and run.row.load.clients == proposal.clients
    )


def _candidates(
    runs: Sequence[Run], limit_ms: float, priors: Mapping[Phase, Prior], measured: Sequence[Run]
) -> list[Candidate]:
    group = runs[0].row.group
    calibration = calibrate(group.system, group.engine, measured, priors=priors)
    return [_candidate(run, limit_ms, calibration, run in measured) for run in runs]


def _candidate(run: Run, limit_ms: float, calibration: Calibration, known: bool) -> Candidate:
    load = run.row.load
    if known:
        tpot_ms, ttft_ms, log_sd = run.row.tpot_ms, run.row.ttft_ms, 0.0
    else:
        decode = calibration.corrections[Phase.DECODE].at(load, run.tpot_ms)
        tpot_ms, log_sd = run.tpot_ms * decode.factor, decode.log_sd
        first = calibration.corrections[Phase.FIRST_TOKEN].at(load, run.ttft_ms)
        ttft_ms = run.ttft_ms * first.factor
    return Candidate(
        layout=load.layout,
        clients=load.clients,
        value=work_per_device(load, ttft_ms, tpot_ms),
        allowed=chance_within(tpot_ms, log_sd, limit_ms),
    )


def work_per_device(load: Load, ttft_ms: float, tpot_ms: float) -> float:
    """Return output tokens per second and device of a closed loop: clients x tokens over a request's time."""
    request_ms = ttft_ms + tpot_ms * max(load.output_tokens - 1, 1)
    return load.clients * load.output_tokens * 1e3 / request_ms / load.layout.devices


def chance_within(expected_ms: float, log_sd: float, limit_ms: float) -> float:
    """Return how likely a time stays within a limit, its logarithm being normal around the expected one's."""
    ahead = math.log(limit_ms / expected_ms)
    if log_sd <= 0.0:
        return float(ahead >= 0.0)
    return 0.5 * (1.0 + math.erf(ahead / (log_sd * math.sqrt(2.0))))
