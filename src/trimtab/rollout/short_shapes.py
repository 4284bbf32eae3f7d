"""What a person writes of a lever, as TOML, and what the fleet knows: `rollout.short_record` completes it."""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from trimtab.core.config import Strict
from trimtab.core.cuts import Cut
from trimtab.core.gate import Metric, Question, Statistic
from trimtab.core.lever import (
    CutHarm,
    LeverRecordError,
    StickyBy,
    TriggerAction,
    TriggerSignal,
)
from trimtab.core.revision import Model, Speculation
from trimtab.core.types import Budget, Mode, Phase, Resource, RolloutState, Technique
from trimtab.engines.kv_types import KvDevice

SHARES: Final = (0.01, 0.05, 0.10, 0.25, 0.50, 0.95)

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
    """How the slice grows. Durations are texts such as "90s", "15min", "24h", "1d".

    `warm_up` absent: 15 minutes for a lever that restarts a replica, none for one that swaps live. `peak_concurrency`:
    requests in flight at the peak, or "recorded": most of the ledger's last peak cycle.
    """

    shares: tuple[float, ...] = SHARES
    peak_cycle: str = "24h"
    block: str = "5min"
    edge: str = "30s"
    warm_up: str | None = None
    sticky_by: StickyBy | None = None
    holdback_share: Annotated[float, Meta(ge=0.0, le=0.5)] = 0.0
    peak_concurrency: Annotated[int, Meta(ge=1)] | Literal["recorded"] | None = None


class RevisionChange(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the candidate's revision has other than the baseline's; what is absent stays as it is.

    `model`: path of another artifact, such as the same model at another precision. `keep`: weights of it that must not
    be lowered, whole names or `re:` and a pattern; refused where one matches nothing or is held in fewer bits.
    `kv_type`: one that the baseline's engine can hold on its device (`engines.kv_types`).
    """

    model: _TEXT | None = None
    keep: tuple[_TEXT, ...] = ()
    kv_type: _TEXT | None = None
    chunk_tokens: Annotated[int, Meta(ge=32, le=65_536)] | None = None
    slots: Annotated[int, Meta(ge=1, le=256)] | None = None
    context_tokens: Annotated[int, Meta(ge=256, le=1_048_576)] | None = None
    host_cache_mib: Annotated[int, Meta(ge=0)] | None = None
    speculation: Speculation | None = None


class ShortRecord(Strict, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lever record as written. Either `policy` (a routing lever) or `revision` says what is moved.

    `without`: cuts that never meet it; `absent`: metrics that the engine does not expose, with why;
    `price_per_replica_hour`: of the candidate's replicas, where it is not the fleet's.
    """

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
    without: tuple[str, ...] = ()
    harm_in_cut: CutHarm = CutHarm.STOP_CUT
    absent: dict[Metric, _TEXT] = msgspec.field(default_factory=dict)
    price_per_replica_hour: Annotated[float, Meta(gt=0.0)] | None = None
    gates: tuple[ShortGate, ...] = ()
    quality_gate: str = ""
    quality_exposure: Literal["none", "lossless_up_to_numerics", "lossy"] | None = None
    ramp: ShortRamp = ShortRamp()
    mode: Mode = Mode.ADVISE
    owner: _TEXT
    expires_after: str = "30d"


def _no_model(path: str) -> Model:
    raise LeverRecordError(f"$.revision.model {path!r} cannot be looked for here")


def _no_weights(path: str) -> Mapping[str, float]:
    raise LeverRecordError(f"$.revision.keep: the weights of {path!r} cannot be read here")


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet knows that a writer need not say.

    `absent`: metrics that cannot be read of its engines, with why. `price_per_replica_hour`: 0 is not known.
    `not_combinable`: a technique and a cut that its engine cannot serve together, such as
    ("speculation", "constraint=json_schema"), with why. `peak_concurrency`: most requests that were in flight at once
    in the last so many seconds, None if none are recorded or not of all that time. `find_model` raises
    `LeverRecordError`, as does `weights_of`: bits a weight by name, of the artifact at a path. `hide` returns a cut as
    it may be kept. `kv_device`: what the fleet's replicas compute on.
    """

    absent: Mapping[Metric, str] = {}
    price_per_replica_hour: float = 0.0
    not_combinable: Mapping[tuple[str, str], str] = {}
    peak_concurrency: Callable[[float], int | None] = lambda _: None
    kv_device: KvDevice = KvDevice.UNKNOWN
    find_model: Callable[[str], Model] = _no_model
    weights_of: Callable[[str], Mapping[str, float]] = _no_weights
    hide: Callable[[Cut], Cut] = lambda cut: cut
