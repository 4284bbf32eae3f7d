"""What `trimtab diagnose --json` prints: one answer about servers that somebody else runs.

Terminal, page and JSON are made of this one structure, so that they cannot differ.
"""

from collections.abc import Mapping, Sequence

import msgspec

from trimtab.core.evidence import Evidence, Reading, Readings
from trimtab.core.findings import Finding, PhaseFinding
from trimtab.core.served import Note, ServerWindow
from trimtab.core.types import Budget, Phase, Resource, Technique
from trimtab.diagnosis.served_advice import (
    Activity,
    Judgement,
    Outcome,
    Proposal,
    ServedAdvice,
)
from trimtab.interfaces.diagnose_words import said_reading
from trimtab.runtime.served_sources import Failure

EXIT_CODES: Mapping[Outcome, int] = {
    Outcome.HEALTHY: 0,
    Outcome.BOTTLENECK: 1,
    Outcome.CANNOT_TELL: 4,
}
"""2 is wrong usage and 3 an error."""

_CONTROLS: Mapping[int, str] = dict.fromkeys((*range(32), *range(127, 160)), "\ufffd")

NOT_READ = "not_read"


class BindingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What dominates: a phase, the resource that binds it, and its part of the time of all requests."""

    phase: Phase
    resource: Resource
    share: float | None
    because: str


class PhaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One phase: what binds it, its part of the time of all requests, how much of the resource is used."""

    phase: Phase
    resource: Resource | None
    share: float | None
    mean_ms: float | None
    used_share: float | None
    samples: int
    because: str


class Statement(msgspec.Struct, frozen=True, kw_only=True):
    """One statement and the ids of the readings behind it."""

    text: str
    evidence: tuple[str, ...] = ()


class BudgetAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One of the four budgets: its used share, null if unknown, and what that is a share of."""

    budget: Budget
    used_share: float | None
    basis: str


class LeverAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One lever. `proposed`: its premise holds; null if that cannot be told. `gain_share_max`: the most of request
    time that it could save.
    """

    lever: str
    technique: Technique | None
    proposed: bool | None
    gain_share_max: float | None
    premise: str
    because: str


class WarningAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known before a reading is believed. `source` and `metric` are empty where it is of none alone."""

    kind: str
    text: str
    source: str = ""
    metric: str = ""
    evidence: tuple[str, ...] = ()


class ReadingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One reading. `said`: as a person reads it ("> 30 s"); `unknown`: why there is no value."""

    id: str
    value: float | None
    said: str
    unit: str = ""
    samples: int | None = None
    source: str = ""
    window_s: float | None = None
    note: str = ""
    unknown: str = ""


class SourceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One server as it was read. `names`: the metric behind each value; `failed`: why it could not be read at all."""

    source: str
    engine: str = ""
    version: str | None = None
    model: str | None = None
    scrapes: int = 0
    window_s: float | None = None
    lifetime: bool = False
    ranks: tuple[str, ...] = ()
    lost_ranks: tuple[str, ...] = ()
    restarts: int = 0
    names: Mapping[str, str] = {}
    configured: Mapping[str, str] = {}
    failed: str = ""


class DiagnoseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is told of the servers."""

    outcome: Outcome
    healthy: bool | None
    healthy_because: str
    activity: Activity
    binding: BindingAnswer | None
    phases: tuple[PhaseAnswer, ...]
    confidence: float
    supports: tuple[Statement, ...] = msgspec.field(name="for", default=())
    against: tuple[Statement, ...] = ()
    ruled_out: tuple[Statement, ...] = ()
    unknown: tuple[Statement, ...] = ()
    would_tell: tuple[str, ...] = ()
    budgets: tuple[BudgetAnswer, ...] = ()
    levers: tuple[LeverAnswer, ...] = ()
    do_not: tuple[Statement, ...] = ()
    judgements: tuple[Judgement, ...] = ()
    warnings: tuple[WarningAnswer, ...] = ()
    sources: tuple[SourceAnswer, ...] = ()
    readings: Mapping[str, ReadingAnswer] = {}
    at_s: float

    @property
    def exit_code(self) -> int:
        """See `EXIT_CODES`."""
        return EXIT_CODES[self.outcome]


def answer_of(
    advice: ServedAdvice,
    readings: Readings,
    windows: Sequence[ServerWindow],
    *,
    failures: Sequence[Failure] = (),
    notes: Sequence[Note] = (),
    at_s: float,
) -> DiagnoseAnswer:
    """Put advice, readings and sources into one answer. `notes`: of all sources, and how they were put together."""
    diagnosis = advice.diagnosis
    binding = advice.binding
    answer = DiagnoseAnswer(
        outcome=advice.outcome,
        healthy=advice.healthy,
        healthy_because=advice.healthy_because,
        activity=advice.activity,
        binding=BindingAnswer(
            phase=binding.phase,
            resource=binding.resource,
            share=binding.share,
            because=binding.because,
        )
        if binding is not None
        else None,
        phases=tuple(_phase(found) for found in diagnosis.phases),
        confidence=diagnosis.confidence,
        supports=_statements(diagnosis.supports),
        against=_statements(diagnosis.contradicts),
        ruled_out=_statements(diagnosis.ruled_out),
        unknown=_statements(diagnosis.unknown),
        would_tell=advice.would_tell,
        budgets=tuple(
            BudgetAnswer(budget=use.budget, used_share=use.used_share, basis=use.basis)
            for use in (diagnosis.budgets.use(budget) for budget in Budget)
        ),
        levers=tuple(_lever(proposal) for proposal in advice.proposals),
        do_not=_statements(advice.not_to_do),
        judgements=advice.judgements,
        warnings=_warnings(advice, failures, notes),
        sources=(*(_source(window) for window in windows), *(_failed(each) for each in failures)),
        readings={reading.name: _reading(reading, readings) for reading in readings.items},
        at_s=at_s,
    )
    return msgspec.convert(_printable(msgspec.to_builtins(answer)), DiagnoseAnswer)


def printable(text: str) -> str:
    """Return text without control characters: a label is a server's, and must not steer the terminal that shows it."""
    return text.translate(_CONTROLS)


def _printable(value: object) -> object:
    match value:
        case str():
            return printable(value)
        case dict():
            return {_printable(key): _printable(each) for key, each in value.items()}
        case list() | tuple():
            return [_printable(each) for each in value]
        case _:
            return value


def _statements(findings: Sequence[Finding]) -> tuple[Statement, ...]:
    return tuple(Statement(text=found.text, evidence=found.evidence) for found in findings)


def _phase(found: PhaseFinding) -> PhaseAnswer:
    return PhaseAnswer(
        phase=found.phase,
        resource=found.resource,
        share=found.share,
        mean_ms=found.mean_ms,
        used_share=found.used_share,
        samples=found.samples,
        because=found.because,
    )


def _lever(proposal: Proposal) -> LeverAnswer:
    return LeverAnswer(
        lever=proposal.lever,
        technique=proposal.technique,
        proposed=proposal.premise_holds,
        gain_share_max=proposal.gain_share_max,
        premise=proposal.premise,
        because=proposal.because,
    )


def _warnings(
    advice: ServedAdvice, failures: Sequence[Failure], notes: Sequence[Note]
) -> tuple[WarningAnswer, ...]:
    lost = [
        WarningAnswer(
            kind=NOT_READ, text=f"{each.source} was not read: {each.reason}", source=each.source
        )
        for each in failures
    ]
    told = [
        WarningAnswer(kind=each.kind.value, text=each.text, evidence=each.evidence)
        for each in advice.warnings
    ]
    seen = [
        WarningAnswer(
            kind=note.kind,
            text=f"{note.metric}: {note.text}" if note.metric else note.text,
            metric=note.metric,
        )
        for note in notes
    ]
    return tuple(dict.fromkeys([*lost, *told, *seen]))


def _source(window: ServerWindow) -> SourceAnswer:
    return SourceAnswer(
        source=window.source,
        engine=window.engine.value,
        version=window.version,
        model=window.model,
        scrapes=window.scrapes,
        window_s=window.length_s,
        lifetime=window.lifetime,
        ranks=tuple(rank.rank for rank in window.ranks),
        lost_ranks=window.lost_ranks,
        restarts=window.restarts,
        names=window.names,
        configured=window.configured,
    )


def _failed(failure: Failure) -> SourceAnswer:
    return SourceAnswer(source=failure.source, failed=failure.reason)


def _reading(reading: Reading, readings: Readings) -> ReadingAnswer:
    if not isinstance(reading, Evidence):
        return ReadingAnswer(
            id="", value=None, said=said_reading(reading, readings), unknown=reading.reason
        )
    return ReadingAnswer(
        id=reading.id,
        value=reading.value,
        said=said_reading(reading, readings),
        unit=reading.unit,
        samples=reading.samples,
        source=reading.source,
        window_s=reading.window.length_s,
        note=reading.note,
    )
