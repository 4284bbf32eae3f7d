"""Levers: the contract every technique fulfils, and the record that is the head of its causal chain.

A lever record is complete or refused: every field says something, or there is no rollout.
"""

from enum import IntEnum, StrEnum
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from trimtab.core.budgets import BudgetMove
from trimtab.core.cost import CostModel, SpeculationTable
from trimtab.core.cuts import Cut
from trimtab.core.evidence import Readings
from trimtab.core.findings import Diagnosis
from trimtab.core.gate import GateSpec, Metric, Question
from trimtab.core.revision import Revision
from trimtab.core.types import Mode, Phase, Resource, Technique


class QualityExposure(IntEnum):
    """Whether a lever can change what users get."""

    NONE = 0
    LOSSLESS_UP_TO_NUMERICS = 1
    LOSSY = 2


class Dependency(IntEnum):
    """What a lever needs that is not there yet."""

    NONE = 0
    ANOTHER_REPLICA = 1
    NEW_HARDWARE = 2


class Actuation(IntEnum):
    """How a lever is moved."""

    LIVE = 0
    ROUTING = 1
    RESTART = 2


class Scope(IntEnum):
    """How little a lever can be applied to."""

    SLICE = 0
    EVERYTHING = 1


class Narrowness(msgspec.Struct, frozen=True, order=True):
    """Lexicographic: the smaller, the narrower. Never a weighted score."""

    quality: QualityExposure
    dependency: Dependency
    actuation: Actuation
    scope: Scope
    reverse_s: float


class Comparison(StrEnum):
    """How a candidate is compared with its baseline."""

    SWITCHBACK = "switchback"
    SIDE_BY_SIDE = "side_by_side"


class StickyBy(StrEnum):
    """What keeps its place in or out of a slice."""

    SESSION = "session"
    TENANT = "tenant"
    REQUEST = "request"


class CutHarm(StrEnum):
    """What harm shown in one cut does: stop the lever, or keep the cut off it where requests can be told apart."""

    STOP_LEVER = "stop_lever"
    STOP_CUT = "stop_cut"


class TriggerSignal(StrEnum):
    """What a trigger watches. Each is computed over a window of recent requests or of replica states."""

    BATCH = "batch"
    NET_TPOT_RATIO = "net_tpot_ratio"
    DRAFT_ACCEPTANCE = "draft_acceptance"
    DRAFT_COVERAGE = "draft_coverage"
    LOAD_OVER_BOUND = "load_over_bound"
    DELIVERED_OVER_PREDICTED = "delivered_over_predicted"
    TRANSFER_SHARE = "transfer_share"
    LOAD_PER_REPLICA = "load_per_replica"
    EFFECTIVE_MISMATCH = "effective_mismatch"
    INVALID_OUTPUT_RATE = "invalid_output_rate"
    QUALITY_LOSS = "quality_loss"


class TriggerAction(StrEnum):
    """What a trigger does: take the lever back everywhere, or only for one cut; or make it lean less on the cache.

    `distrust_index` forgets what replicas are believed to hold; `lower_affinity` halves what the load bound leaves to
    affinity.
    """

    DISABLE = "disable"
    DISABLE_CUT = "disable_cut"
    DISTRUST_INDEX = "distrust_index"
    LOWER_AFFINITY = "lower_affinity"


class TriggerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A watched condition with hysteresis.

    The lever goes off when the signal passes `off_at` (above it if `off_when_above`) for `ticks` ticks, and may come
    back when it is beyond `on_at` on the other side for `ticks` ticks, but not within `lockout_s` of going off.
    `on_at` None: it does not come back by itself.
    """

    name: Annotated[str, Meta(min_length=1)]
    signal: TriggerSignal
    off_at: float
    on_at: float | None
    off_when_above: bool
    action: TriggerAction = TriggerAction.DISABLE
    cut: Cut | None = None
    ticks: Annotated[int, Meta(ge=1)] = 2
    min_samples: Annotated[int, Meta(ge=1)] = 5
    lockout_s: Annotated[float, Meta(ge=0.0)] = 10.0
    because: Annotated[str, Meta(min_length=1)]


class ExpectedEffect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prediction made before the rollout: the ratio candidate/baseline of a metric, with a range."""

    metric: Metric
    ratio: Annotated[float, Meta(gt=0.0)]
    low: Annotated[float, Meta(gt=0.0)]
    high: Annotated[float, Meta(gt=0.0)]
    because: str


class Bottleneck(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the lever is meant to relieve, and the evidence that it binds."""

    phase: Phase
    resource: Resource
    share: float | None
    diagnosis: Annotated[str, Meta(min_length=1)]
    evidence: tuple[str, ...]


class RampPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a slice grows. One full peak cycle passes before the first growth, and another before adoption.

    `peak_concurrency`: where as many requests as at the recorded peak are in flight again, the cycle is over as soon as
    what they showed is judged; null: it takes its time.
    `warm_up_s`: so long after the first request nothing is judged, as the candidate's caches are cold; what that cost
    is told apart. `harm_alpha`: the chance that a lever that changes nothing is ever stopped for harm, over all gates,
    cuts, shares and looks together; null leaves each gate to its own alpha. `sticky_by`: what keeps its place in the
    slice; null: sessions, or requests where arms share replicas.
    """

    shares: tuple[float, ...] = (0.10, 0.25, 0.50, 0.95)
    peak_cycle_s: Annotated[float, Meta(gt=0.0)] = 86_400.0
    peak_is: str = "one day"
    comparison: Comparison = Comparison.SIDE_BY_SIDE
    block_s: Annotated[float, Meta(gt=0.0)] = 300.0
    edge_s: Annotated[float, Meta(ge=0.0)] = 60.0
    holdback_share: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.0
    harm_alpha: Annotated[float, Meta(gt=0.0, lt=0.5)] | None = 0.01
    warm_up_s: Annotated[float, Meta(ge=0.0)] = 0.0
    sticky_by: StickyBy | None = None
    peak_concurrency: Annotated[int, Meta(ge=1)] | None = None

    def compared(self, comparison: Comparison) -> "RampPlan":
        """Return the ramp for a kind of comparison.

        Side by side a block sees both arms, so half a switchback's block gives as much of each.
        """
        if comparison is self.comparison:
            return self
        longer = 0.5 if comparison is Comparison.SIDE_BY_SIDE else 2.0
        return msgspec.structs.replace(self, comparison=comparison, block_s=self.block_s * longer)


class LeverRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The head of a lever's causal record. `check_record` refuses one that leaves a field unsaid.

    `prefill`: how many replicas the lever has prefill for the others; 0 for a lever that is not about roles.
    `absent`: metrics that the engine does not expose, with the reason; nothing is asked of them. `keep`: rules of
    weights that its artifact was seen to hold as wide as the baseline's.
    """

    name: str
    technique: Technique
    bottleneck: Bottleneck
    premise: str
    condition: str
    moves: tuple[BudgetMove, ...]
    expected: tuple[ExpectedEffect, ...]
    failure_modes: tuple[str, ...]
    gates: tuple[GateSpec, ...]
    quality_gate: str
    triggers: tuple[TriggerSpec, ...]
    reverse: str
    ramp: RampPlan
    cuts: tuple[Cut, ...] = ()
    policy: str | None = None
    revision: Revision | None = None
    keep: tuple[str, ...] = ()
    prefill: int = 0
    mode: Mode = Mode.ADVISE
    owner: str
    created_at_s: float
    expires_at_s: float
    narrowness: Narrowness
    chosen_because: str
    without: tuple[Cut, ...] = ()
    harm_in_cut: CutHarm = CutHarm.STOP_LEVER
    absent: dict[Metric, str] = {}
    price_per_replica_hour: float | None = None


class LeverRecordError(ValueError):
    """A lever record that cannot be accepted; the message names the field's path and the fix."""


def check_record(record: LeverRecord) -> LeverRecord:
    """Return the record if it is complete, else raise `LeverRecordError` with the path of the first gap."""
    said = {
        "name": record.name,
        "premise": record.premise,
        "condition": record.condition,
        "quality_gate": record.quality_gate,
        "reverse": record.reverse,
        "owner": record.owner,
        "chosen_because": record.chosen_because,
        "bottleneck.diagnosis": record.bottleneck.diagnosis,
    }
    for path, text in said.items():
        if not text.strip():
            raise LeverRecordError(f"$.{path} is empty: say it, or there is no rollout")
    listed: dict[str, tuple[object, ...]] = {
        "bottleneck.evidence": record.bottleneck.evidence,
        "moves": record.moves,
        "expected": record.expected,
        "failure_modes": record.failure_modes,
        "gates": record.gates,
        "triggers": record.triggers,
        "ramp.shares": record.ramp.shares,
    }
    for path, items in listed.items():
        if not items:
            raise LeverRecordError(f"$.{path} has no entry: name at least one")
    _check_meaning(record)
    return record


def _check_meaning(record: LeverRecord) -> None:
    if record.expires_at_s <= record.created_at_s:
        raise LeverRecordError(
            "$.expires_at_s is not after $.created_at_s: a lever must prove itself again"
        )
    shares = record.ramp.shares
    if list(shares) != sorted(set(shares)) or shares[0] <= 0.0 or shares[-1] > 0.95:
        raise LeverRecordError("$.ramp.shares must rise strictly from above 0 to at most 0.95")
    if 2 * record.ramp.edge_s >= record.ramp.block_s:
        raise LeverRecordError(
            "$.ramp.edge_s leaves nothing of $.ramp.block_s: edges on both sides are dropped"
        )
    if not any(move.spends for move in record.moves):
        raise LeverRecordError(
            "$.moves names no budget that pays: every lever moves pressure somewhere"
        )
    if not any(gate.question is Question.GAIN for gate in record.gates):
        raise LeverRecordError(
            "$.gates has no gate with question 'gain': nothing would prove the effect"
        )
    for index, gate in enumerate(record.gates):
        if gate.metric in record.absent:
            raise LeverRecordError(
                f"$.gates[{index}] asks about {gate.metric.value}, which $.absent says cannot be read: "
                f"{record.absent[gate.metric]}; leave one of them out"
            )
    names = [gate.name for gate in record.gates]
    if len(names) != len(set(names)):
        raise LeverRecordError("$.gates has two gates of one name: names must be unique")
    for index, effect in enumerate(record.expected):
        if not effect.low <= effect.ratio <= effect.high:
            raise LeverRecordError(
                f"$.expected[{index}]: ratio {effect.ratio} is outside [low, high]"
            )
    for index, trigger in enumerate(record.triggers):
        _check_hysteresis(index, trigger)


def _check_hysteresis(index: int, trigger: TriggerSpec) -> None:
    if trigger.on_at is None:
        return
    apart = (
        trigger.off_at - trigger.on_at if trigger.off_when_above else trigger.on_at - trigger.off_at
    )
    if apart <= 0:
        raise LeverRecordError(f"$.triggers[{index}].on_at leaves no hysteresis against off_at")


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What levers are assessed on: one diagnosis, the readings behind it, the measured costs, the fleet.

    `attached`: the replicas are servers of others, which trimtab can neither restart nor start. `prefill_replicas`: of
    all, those that prefill for the others; `prefill_restarts`: whoever takes that role restarts with settings of its
    own.
    """

    diagnosis: Diagnosis
    readings: Readings
    cost: CostModel
    speculation: SpeculationTable | None
    revision: Revision
    replicas: int
    target_gain: float
    now_s: float
    ramp: RampPlan
    mode: Mode
    owner: str
    adopted: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    attached: bool = False
    prefill_replicas: int = 0
    prefill_restarts: bool = False


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What a lever says of a situation. `gain_share`: predicted part of mean end-to-end time saved.

    `because`: why it cannot be moved here; else why its premise does not hold; else what could be gained.
    """

    lever: str
    technique: Technique
    premise: str
    premise_holds: bool
    gain_share: float | None
    moves: tuple[BudgetMove, ...]
    narrowness: Narrowness
    available: bool
    because: str


class Lever(Protocol):
    """One technique. Pure: it assesses a situation and writes the record; the runtime moves it."""

    @property
    def name(self) -> str:
        """The lever's name in records, events and commands."""
        ...

    def assess(self, situation: Situation) -> Assessment:
        """Say whether the premise holds, what could be gained, and which budget would pay."""
        ...

    def propose(self, situation: Situation, assessment: Assessment, because: str) -> LeverRecord:
        """Write the complete lever record; raises `LeverRecordError` if something cannot be said."""
        ...
