"""The lever record as a person writes it: a short TOML file, completed to a whole record or refused.

What only the writer can know has no default: what binds, the premise, which budget pays, what is expected, what can
newly go wrong. The rest follows from how the lever is moved: a routing policy swaps live and is compared by
switchback, a revision restarts a replica and is compared side by side.
"""

import re
import tomllib
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from trimtab.core.budgets import BudgetMove
from trimtab.core.config import Strict
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.gate import GateSpec, Metric, Question, Statistic
from trimtab.core.lever import (
    Actuation,
    Bottleneck,
    Comparison,
    Dependency,
    ExpectedEffect,
    LeverRecord,
    LeverRecordError,
    Narrowness,
    QualityExposure,
    RampPlan,
    Scope,
    TriggerAction,
    TriggerSignal,
    TriggerSpec,
    check_record,
)
from trimtab.core.revision import Revision, Speculation
from trimtab.core.types import Budget, Mode, Phase, Resource, RolloutState, Technique
from trimtab.rollout.answer import RATES
from trimtab.rollout.defaults import gain_gate, harm_gates, safety_gates

SHARES: Final = (0.01, 0.05, 0.10, 0.25, 0.50, 0.95)
RECORD_BYTES_MAX: Final = 256 * 1024
LIVE_REVERSE_S, RESTART_REVERSE_S = 0.1, 60.0

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_TEXT = Annotated[str, Meta(min_length=1)]


class ShortBottleneck(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What binds. `diagnosis`: the id of a diagnosis in the ledger, or words with where they come from."""

    phase: Phase
    resource: Resource
    diagnosis: _TEXT
    share: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    evidence: tuple[_TEXT, ...] = ()


class ShortMove(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the lever does to one budget. `delta_share` absent: the size is not known in advance."""

    budget: Budget
    spends: bool
    because: _TEXT
    delta_share: Annotated[float, Meta(ge=-1.0, le=1.0)] | None = None


class ShortEffect(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prediction: candidate over baseline, with its range."""

    ratio: Annotated[float, Meta(gt=0.0)]
    low: Annotated[float, Meta(gt=0.0)]
    high: Annotated[float, Meta(gt=0.0)]
    because: _TEXT


class ShortGate(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One gate more than those that every record gets. `cut`: such as "input_tokens=4096-16384"."""

    metric: Metric
    question: Question
    margin: Annotated[float, Meta(ge=0.0, le=10.0)]
    name: str = ""
    statistic: Statistic = Statistic.TYPICAL
    cut: str | None = None
    alpha: Annotated[float, Meta(gt=0.0, lt=0.5)] = 0.05
    min_requests: Annotated[int, Meta(ge=1)] = 20
    min_units: Annotated[int, Meta(ge=1)] = 6
    during: tuple[RolloutState, ...] = (RolloutState.PROVING,)
    required: bool = True


class ShortTrigger(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What switches the lever off. `on_at` absent: it does not come back by itself."""

    signal: TriggerSignal
    off_at: float
    off_when_above: bool
    because: _TEXT
    name: str = ""
    on_at: float | None = None
    action: TriggerAction = TriggerAction.DISABLE
    cut: str | None = None
    ticks: Annotated[int, Meta(ge=1)] = 2
    min_samples: Annotated[int, Meta(ge=1)] = 5
    lockout_s: Annotated[float, Meta(ge=0.0)] = 60.0


class ShortRamp(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the slice grows. Durations are texts such as "90s", "15min", "24h", "1d"."""

    shares: tuple[float, ...] = SHARES
    peak_cycle: str = "24h"
    block: str = "5min"
    edge: str = "30s"
    holdback_share: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.0


class RevisionChange(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the candidate's revision has other than the baseline's; what is absent stays as it is."""

    kv_type: Annotated[str, Meta(pattern="^(f16|bf16|q8_0|q4_0)$")] | None = None
    chunk_tokens: Annotated[int, Meta(ge=32, le=65_536)] | None = None
    slots: Annotated[int, Meta(ge=1, le=256)] | None = None
    context_tokens: Annotated[int, Meta(ge=256, le=1_048_576)] | None = None
    host_cache_mib: Annotated[int, Meta(ge=0)] | None = None
    speculation: Speculation | None = None


class ShortRecord(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lever record as written. Either `policy` (a routing lever) or `revision` says what is moved."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    technique: Technique
    bottleneck: ShortBottleneck
    premise: _TEXT
    condition: _TEXT
    moves: Annotated[tuple[ShortMove, ...], Meta(min_length=1)]
    expected: Annotated[dict[Metric, ShortEffect], Meta(min_length=1)]
    failure_modes: Annotated[tuple[_TEXT, ...], Meta(min_length=1)]
    triggers: Annotated[tuple[ShortTrigger, ...], Meta(min_length=1)]
    policy: _TEXT | None = None
    revision: RevisionChange | None = None
    slice: tuple[str, ...] = ()
    gates: tuple[ShortGate, ...] = ()
    quality_gate: str = ""
    quality_exposure: Literal["none", "lossless_up_to_numerics", "lossy"] | None = None
    ramp: ShortRamp = ShortRamp()
    mode: Mode = Mode.ADVISE
    owner: _TEXT
    expires_after: str = "30d"


def parse_record(text: str, *, source: str) -> ShortRecord:
    """Read a TOML text; raises `LeverRecordError` naming the file and the path of the wrong key."""
    if len(text) > RECORD_BYTES_MAX:
        raise LeverRecordError(f"{source} is longer than {RECORD_BYTES_MAX:,} bytes")
    try:
        return msgspec.convert(tomllib.loads(text), ShortRecord)
    except tomllib.TOMLDecodeError as error:
        raise LeverRecordError(f"{source} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise LeverRecordError(f"{source}: {error}") from error


def complete(short: ShortRecord, *, baseline: Revision, now_s: float) -> LeverRecord:
    """Return the whole record for a fleet whose plain replicas run `baseline`; `now_s`: seconds since 1970.

    Raises `LeverRecordError` with the path of what is missing or contradicts itself.
    """
    if (short.policy is None) == (short.revision is None):
        raise LeverRecordError(
            "$: say what is moved, either `policy` (routing) or `[revision]` (the engine), not both"
        )
    revision = None if short.revision is None else _changed(short.revision, baseline)
    record = LeverRecord(
        name=short.name,
        technique=short.technique,
        bottleneck=Bottleneck(
            phase=short.bottleneck.phase,
            resource=short.bottleneck.resource,
            share=short.bottleneck.share,
            diagnosis=short.bottleneck.diagnosis,
            evidence=short.bottleneck.evidence or (short.bottleneck.diagnosis,),
        ),
        premise=short.premise,
        condition=short.condition,
        moves=tuple(BudgetMove(**msgspec.structs.asdict(move)) for move in short.moves),
        expected=tuple(_effect(metric, each) for metric, each in short.expected.items()),
        failure_modes=short.failure_modes,
        gates=_gates(short),
        quality_gate=short.quality_gate or _quality(short),
        triggers=tuple(_trigger(at, each) for at, each in enumerate(short.triggers)),
        reverse=_reverse(short),
        ramp=_ramp(short),
        cuts=tuple(_cut(text, f"$.slice[{at}]") for at, text in enumerate(short.slice)),
        policy=short.policy,
        revision=revision,
        mode=short.mode,
        owner=short.owner,
        created_at_s=now_s,
        expires_at_s=now_s + seconds(short.expires_after, "$.expires_after"),
        narrowness=_narrowness(short),
        chosen_because=f"{short.owner} proposed it",
    )
    return check_record(record)


def seconds(text: str, path: str) -> float:
    """Return the seconds of a duration such as "24h"; raises `LeverRecordError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise LeverRecordError(f'{path}: {text!r} is no duration; write "90s", "15min", "24h"')
    return float(found[1]) * _UNITS[found[2]]


def _changed(change: RevisionChange, baseline: Revision) -> Revision:
    changes = {
        name: value for name, value in msgspec.structs.asdict(change).items() if value is not None
    }
    revision = baseline.replace(**changes)
    if revision == baseline:
        raise LeverRecordError("$.revision changes nothing: every value is the baseline's already")
    return revision


def _effect(metric: Metric, effect: ShortEffect) -> ExpectedEffect:
    return ExpectedEffect(
        metric=metric,
        ratio=effect.ratio,
        low=effect.low,
        high=effect.high,
        because=effect.because,
    )


def _gates(short: ShortRecord) -> tuple[GateSpec, ...]:
    """The written gates, and for every latency a veto that tightens as the slice grows; the gain is asked at the end.

    Without a written gain gate it is asked of every metric that is expected to get better.
    """
    written = tuple(_gate(at, each) for at, each in enumerate(short.gates))
    gains = tuple(
        gain_gate(metric)
        for metric, effect in short.expected.items()
        if metric not in RATES and _is_better(metric, effect.ratio)
    )
    if any(gate.question is Question.GAIN for gate in written):
        gains = ()
    vetoes = [gate for metric in (Metric.TTFT_MS, Metric.TPOT_MS) for gate in harm_gates(metric)]
    taken = {gate.name for gate in written}
    defaults = (*gains, *vetoes, *safety_gates())
    return (*written, *(gate for gate in defaults if gate.name not in taken))


def _is_better(metric: Metric, ratio: float) -> bool:
    return ratio > 1.0 if metric is Metric.OUTPUT_TOKENS_PER_S else ratio < 1.0


def _gate(at: int, gate: ShortGate) -> GateSpec:
    cut = None if gate.cut is None else _cut(gate.cut, f"$.gates[{at}].cut")
    where = "" if cut is None else f" in {cut}"
    return GateSpec(
        name=gate.name or f"{gate.metric.value} {gate.question.value} as written{where}",
        metric=gate.metric,
        question=gate.question,
        margin=gate.margin,
        statistic=gate.statistic,
        cut=cut,
        alpha=gate.alpha,
        min_requests=gate.min_requests,
        min_units=gate.min_units,
        during=gate.during,
        required=gate.required,
    )


def _trigger(at: int, trigger: ShortTrigger) -> TriggerSpec:
    cut = None if trigger.cut is None else _cut(trigger.cut, f"$.triggers[{at}].cut")
    if (trigger.action is TriggerAction.DISABLE_CUT) != (cut is not None):
        raise LeverRecordError(
            f"$.triggers[{at}]: the action disable_cut and a cut go together, neither without the other"
        )
    return TriggerSpec(
        name=trigger.name or f"{trigger.signal.value}-{at}",
        signal=trigger.signal,
        off_at=trigger.off_at,
        on_at=trigger.on_at,
        off_when_above=trigger.off_when_above,
        action=trigger.action,
        cut=cut,
        ticks=trigger.ticks,
        min_samples=trigger.min_samples,
        lockout_s=trigger.lockout_s,
        because=trigger.because,
    )


def _cut(text: str, path: str) -> Cut:
    try:
        return parse_cut(text)
    except ValueError as error:
        raise LeverRecordError(f"{path}: {error}") from error


def parse_cut(text: str) -> Cut:
    """Return the cut that a text such as "label=edit" names; raises `ValueError` with the dimensions there are."""
    dimension, equals, value = text.partition("=")
    names = [each.value for each in Dimension]
    if dimension not in names or not equals or not value:
        raise ValueError(
            f"{text!r} is no cut; write DIMENSION=VALUE with one of {', '.join(names)}"
        )
    return Cut(Dimension(dimension), value)


def _ramp(short: ShortRecord) -> RampPlan:
    ramp = short.ramp
    return RampPlan(
        shares=ramp.shares,
        peak_cycle_s=seconds(ramp.peak_cycle, "$.ramp.peak_cycle"),
        peak_is=f"a peak cycle of {ramp.peak_cycle}",
        comparison=Comparison.SWITCHBACK if short.policy else Comparison.SIDE_BY_SIDE,
        block_s=seconds(ramp.block, "$.ramp.block"),
        edge_s=seconds(ramp.edge, "$.ramp.edge"),
        holdback_share=ramp.holdback_share,
    )


def _reverse(short: ShortRecord) -> str:
    if short.policy is not None:
        return "swap the routing policy back in one plan change; nothing restarts, caches keep what they hold"
    return (
        "take its traffic off by one plan change, then restart its replicas into the baseline revision with the KV "
        "of their slots saved and restored"
    )


def _quality(short: ShortRecord) -> str:
    if _exposure(short) is QualityExposure.LOSSY:
        raise LeverRecordError(
            "$.quality_gate is missing: a lossy lever says how its outputs are held to the baseline's"
        )
    return "outputs at temperature 0 are compared with the baseline's, beyond what two baseline runs differ"


def _exposure(short: ShortRecord) -> QualityExposure:
    if short.quality_exposure is not None:
        return QualityExposure[short.quality_exposure.upper()]
    change = short.revision
    if short.technique is Technique.QUANTIZATION or (change is not None and change.kv_type):
        return QualityExposure.LOSSY
    if short.technique is Technique.SPECULATION:
        return QualityExposure.LOSSLESS_UP_TO_NUMERICS
    return QualityExposure.NONE


def _narrowness(short: ShortRecord) -> Narrowness:
    live = short.policy is not None
    return Narrowness(
        quality=_exposure(short),
        dependency=Dependency.NONE,
        actuation=Actuation.LIVE if live else Actuation.RESTART,
        scope=Scope.SLICE,
        reverse_s=LIVE_REVERSE_S if live else RESTART_REVERSE_S,
    )
