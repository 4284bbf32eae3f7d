"""The lever record as a person writes it: a short TOML file, completed to a whole record or refused.

What only the writer can know has no default: what binds, the premise, which budget pays, what is expected, what can
newly go wrong. The rest follows from how the lever is moved: a routing policy swaps live and is compared by
switchback, a revision restarts a replica and is compared side by side.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Final

import msgspec

from trimtab.core.budgets import BudgetMove
from trimtab.core.cuts import KNOWN_BEFORE_SERVING, Cut, Dimension, header_names
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.lever import (
    Bottleneck,
    ExpectedEffect,
    LeverRecord,
    LeverRecordError,
    QualityExposure,
    RampPlan,
    TriggerAction,
    TriggerSpec,
    check_record,
)
from trimtab.core.revision import Revision
from trimtab.core.types import RolloutState, Technique
from trimtab.engines.kv_types import judge_kv_type
from trimtab.rollout.answer import RATES
from trimtab.rollout.defaults import gain_gate, harm_gates, safety_gates
from trimtab.rollout.kept_weights import check_kept
from trimtab.rollout.movement import comparison_of, narrowness_of, reverse_of
from trimtab.rollout.short_shapes import Known as Known
from trimtab.rollout.short_shapes import (
    RevisionChange,
    ShortEffect,
    ShortGate,
    ShortRecord,
    ShortTrigger,
)

RECORD_BYTES_MAX: Final = 256 * 1024
RESTART_WARM_UP: Final = "15min"
COST_MARGIN: Final = 0.10
"""How much more a million output tokens may cost before adoption, where a price is known."""

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)")
_UNITS: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


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


def complete(
    short: ShortRecord, *, baseline: Revision, now_s: float, known: Known | None = None
) -> LeverRecord:
    """Return the whole record for a fleet whose plain replicas run `baseline`; `now_s`: seconds since 1970.

    Raises `LeverRecordError` with the path of what is missing or contradicts itself.
    """
    if (short.policy is None) == (short.revision is None):
        raise LeverRecordError(
            "$: say what is moved, either `policy` (routing) or `[revision]` (the engine), not both"
        )
    known = known or Known()
    revision = None if short.revision is None else _changed(short.revision, baseline, known)
    absent = {**known.absent, **short.absent}
    price = short.price_per_replica_hour or known.price_per_replica_hour or None
    without = _without(short, known)
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
        failure_modes=(*short.failure_modes, *_unknown_of_kv(short, baseline, known)),
        gates=_gates(short, absent, price, known),
        quality_gate=short.quality_gate or _quality(short),
        triggers=tuple(_trigger(at, each, known) for at, each in enumerate(short.triggers)),
        reverse=reverse_of(live=short.policy is not None),
        ramp=_ramp(short, known),
        cuts=tuple(_sliced(text, f"$.slice[{at}]", known) for at, text in enumerate(short.slice)),
        policy=short.policy,
        revision=revision,
        keep=() if short.revision is None else short.revision.keep,
        mode=short.mode,
        owner=short.owner,
        created_at_s=now_s,
        expires_at_s=now_s + seconds(short.expires_after, "$.expires_after"),
        narrowness=narrowness_of(_exposure(short), live=short.policy is not None),
        chosen_because=f"{short.owner} proposed it",
        without=without,
        harm_in_cut=short.harm_in_cut,
        absent=absent,
        price_per_replica_hour=price,
    )
    _check_headers(record)
    return check_record(record)


def _check_headers(record: LeverRecord) -> None:
    """Requests are told by a header only where the slice, or what is left out of it, names it."""
    told = header_names((*record.cuts, *record.without))
    asked = [(f"$.gates[{at}].cut", gate.cut) for at, gate in enumerate(record.gates)]
    asked += [(f"$.triggers[{at}].cut", each.cut) for at, each in enumerate(record.triggers)]
    for path, cut in asked:
        missing = header_names(() if cut is None else (cut,)) - told
        if missing:
            raise LeverRecordError(
                f"{path}: no request is told by {min(missing)!r}; "
                "name that header in $.slice or $.without as well"
            )


def seconds(text: str, path: str) -> float:
    """Return the seconds of a duration such as "24h"; raises `LeverRecordError`."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise LeverRecordError(f'{path}: {text!r} is no duration; write "90s", "15min", "24h"')
    return float(found[1]) * _UNITS[found[2]]


def _changed(change: RevisionChange, baseline: Revision, known: Known) -> Revision:
    changes = {
        name: value for name, value in msgspec.structs.asdict(change).items() if value is not None
    }
    del changes["keep"]
    if change.kv_type:
        judged = judge_kv_type(baseline.engine, change.kv_type, known.kv_device)
        if judged.problem:
            raise LeverRecordError(f"$.revision.kv_type: {judged.problem}")
    if change.keep and change.model is None:
        raise LeverRecordError("$.revision.keep is about another artifact: name it as `model`")
    if change.model is not None:
        # Clients go on naming the model they know: it is the same one at another precision.
        found = known.find_model(change.model)
        if change.keep:
            check_kept(
                change.keep, known.weights_of(found.path), known.weights_of(baseline.model.path)
            )
        changes["model"] = msgspec.structs.replace(found, name=baseline.model.name)
    revision = baseline.replace(**changes)
    if revision == baseline:
        raise LeverRecordError("$.revision changes nothing: every value is the baseline's already")
    return revision


def _unknown_of_kv(short: ShortRecord, baseline: Revision, known: Known) -> tuple[str, ...]:
    """Return what is not known of the KV type on the fleet's devices: it can newly go wrong."""
    if short.revision is None or not short.revision.kv_type:
        return ()
    judged = judge_kv_type(baseline.engine, short.revision.kv_type, known.kv_device)
    return (judged.unknown,) if judged.unknown else ()


def _effect(metric: Metric, effect: ShortEffect) -> ExpectedEffect:
    return ExpectedEffect(
        metric=metric,
        ratio=effect.ratio,
        low=effect.low,
        high=effect.high,
        because=effect.because,
    )


def _gates(
    short: ShortRecord, absent: Mapping[Metric, str], price: float | None, known: Known
) -> tuple[GateSpec, ...]:
    """The written gates, and for every latency a veto that tightens as the slice grows; the gain is asked at the end.

    Without a written gain gate it is asked of every metric that is expected to get better. Nothing is asked by itself
    that cannot be read, nor that outputs be equal where a lossy lever has its quality scored.
    """
    written = tuple(_gate(at, each, known) for at, each in enumerate(short.gates))
    gains = tuple(
        gain_gate(metric)
        for metric, effect in short.expected.items()
        if metric not in RATES and _is_better(metric, effect.ratio)
    )
    if any(gate.question is Question.GAIN for gate in written):
        gains = ()
    vetoes = [gate for metric in (Metric.TTFT_MS, Metric.TPOT_MS) for gate in harm_gates(metric)]
    taken = {gate.name for gate in written}
    asked = {gate.metric for gate in written}
    if Metric.UNIT_COST in asked and price is None:
        raise LeverRecordError(
            "$.gates asks about unit_cost, but no price is known: set levers.price_per_replica_hour, or "
            "price_per_replica_hour in the record"
        )
    unasked = set(absent)
    if Metric.QUALITY_LOSS in asked and _exposure(short) is QualityExposure.LOSSY:
        unasked.add(Metric.OUTPUT_DIFFERENCE)
    costs = () if price is None or Metric.UNIT_COST in asked else (_cost_gate(short),)
    defaults = (*gains, *vetoes, *safety_gates(), *costs)
    kept = (gate for gate in defaults if gate.name not in taken and gate.metric not in unasked)
    return (*written, *kept)


def _cost_gate(short: ShortRecord) -> GateSpec:
    return GateSpec(
        name="unit cost",
        metric=Metric.UNIT_COST,
        question=Question.VETO,
        margin=COST_MARGIN,
        matched_batch=short.policy is None,
        during=(RolloutState.PROVING,),
    )


def _is_better(metric: Metric, ratio: float) -> bool:
    return ratio > 1.0 if metric is Metric.OUTPUT_TOKENS_PER_S else ratio < 1.0


def _gate(at: int, gate: ShortGate, known: Known) -> GateSpec:
    cut = None if gate.cut is None else _kept(gate.cut, f"$.gates[{at}].cut", known)
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


def _trigger(at: int, trigger: ShortTrigger, known: Known) -> TriggerSpec:
    cut = None if trigger.cut is None else _kept(trigger.cut, f"$.triggers[{at}].cut", known)
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


def _kept(text: str, path: str, known: Known) -> Cut:
    """A cut as it may be kept: what a header says is hashed."""
    cut = _cut(text, path)
    try:
        return known.hide(cut)
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


def _sliced(text: str, path: str, known: Known) -> Cut:
    """A cut that requests are told by before they are served, as it may be kept."""
    cut = _cut(text, path)
    if cut.dimension not in KNOWN_BEFORE_SERVING:
        names = ", ".join(sorted(each.value for each in KNOWN_BEFORE_SERVING))
        raise LeverRecordError(
            f"{path}: {cut} is known only when a request has been served; a slice is drawn by {names}"
        )
    return _kept(text, path, known)


def _without(short: ShortRecord, known: Known) -> tuple[Cut, ...]:
    """The cuts that never meet the lever; refused where its engine cannot serve one of them with it."""
    without = tuple(
        _sliced(text, f"$.without[{at}]", known) for at, text in enumerate(short.without)
    )
    drawn = {_cut(text, f"$.slice[{at}]") for at, text in enumerate(short.slice)}
    for (technique, text), why in known.not_combinable.items():
        cut = parse_cut(text)
        apart = any(each.dimension is cut.dimension and each != cut for each in drawn)
        if technique != short.technique.value or cut in without or apart:
            continue
        raise LeverRecordError(
            f'$.without lacks "{cut}": {technique} is not combinable with it here ({why}); nothing is exposed'
        )
    return without


def _ramp(short: ShortRecord, known: Known) -> RampPlan:
    ramp = short.ramp
    peak_cycle_s = seconds(ramp.peak_cycle, "$.ramp.peak_cycle")
    return RampPlan(
        shares=ramp.shares,
        peak_cycle_s=peak_cycle_s,
        peak_concurrency=_peak(ramp.peak_concurrency, peak_cycle_s, known),
        peak_is=f"a peak cycle of {ramp.peak_cycle}",
        comparison=comparison_of(live=short.policy is not None),
        block_s=seconds(ramp.block, "$.ramp.block"),
        edge_s=seconds(ramp.edge, "$.ramp.edge"),
        holdback_share=ramp.holdback_share,
        warm_up_s=_warm_up_s(short),
        sticky_by=ramp.sticky_by,
    )


def _peak(asked: int | str | None, peak_cycle_s: float, known: Known) -> int | None:
    if asked is None or isinstance(asked, int):
        return asked
    recorded = known.peak_concurrency(peak_cycle_s)
    if recorded is None:
        raise LeverRecordError(
            "$.ramp.peak_concurrency: no request of the last peak cycle is in the ledger, or the ledger does not reach "
            "back so far (ledger.keep_events); write how many are in flight at the peak"
        )
    return recorded


def _warm_up_s(short: ShortRecord) -> float:
    """Caches that start empty get their time, but not more than a quarter of the first peak cycle."""
    if short.ramp.warm_up is not None:
        return 0.0 if short.ramp.warm_up == "0s" else seconds(short.ramp.warm_up, "$.ramp.warm_up")
    if short.policy is not None:
        return 0.0
    return min(seconds(RESTART_WARM_UP, ""), seconds(short.ramp.peak_cycle, "") / 4.0)


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
    lossy = change is not None and (change.kv_type or change.model)
    if short.technique is Technique.QUANTIZATION or lossy:
        return QualityExposure.LOSSY
    if short.technique is Technique.SPECULATION:
        return QualityExposure.LOSSLESS_UP_TO_NUMERICS
    return QualityExposure.NONE
