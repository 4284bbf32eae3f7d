"""What could be done about a bottleneck, narrowest first, and what should not be.

Order is that of levers: quality exposure, then new dependencies, then how it is moved, then scope, then time to
reverse. What people do on servers that are not ours is a restart at best; a change of prompts or of a client is live.
"""

from collections.abc import Callable

import msgspec

from trimtab.core.evidence import Readings
from trimtab.core.findings import Ceiling
from trimtab.core.lever import Actuation, Dependency, Narrowness, QualityExposure, Scope
from trimtab.core.types import Phase, Resource, Technique
from trimtab.diagnosis.served_advice import Binding, Proposal
from trimtab.diagnosis.served_facts import ServedFacts
from trimtab.diagnosis.served_names import ServedName
from trimtab.diagnosis.served_rules_ceilings import LITTLE_SHARE
from trimtab.diagnosis.served_rules_costs import Costs
from trimtab.diagnosis.served_rules_phases import (
    is_queued,
    kv_full,
    kv_used,
    preempts,
    slots_full,
)
from trimtab.diagnosis.served_rules_time import Times

WORTHWHILE_GAIN = 0.02
"""A technique whose ceiling is below this is not worth a change."""

STALLED_MIN_SHARE = 0.05
SMALL_BATCH = 32.0
"""Up to this batch four-bit weights save more reading than their unpacking costs, as public reports have it."""

KV_ROOM_SHARE = 0.7
"""Below this used share of the KV cache more requests fit beside each other."""


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """What proposals are weighed on."""

    readings: Readings
    facts: ServedFacts
    times: Times
    costs: Costs
    binding: Binding | None
    ceilings: dict[Technique, Ceiling]

    def binds(self, phase: Phase, resource: Resource) -> bool:
        """Say whether this is the dominant bottleneck."""
        return (
            self.binding is not None
            and self.binding.phase is phase
            and self.binding.resource is resource
        )


Judged = tuple[bool | None, str, str]
"""(premise holds, premise, why)."""

_NONE, _NUMERICS, _LOSSY = QualityExposure
_HERE, _REPLICA, _HARDWARE = Dependency
_LIVE, _ROUTING, _RESTART = Actuation
_SLICE, _ALL = Scope


def proposals_of(weighed: Weighed) -> tuple[Proposal, ...]:
    """Return every lever weighed, narrowest first, equal ones by name."""
    made = [_proposal(weighed, *row) for row in _LEVERS]
    return tuple(sorted(made, key=lambda each: (each.narrowness, each.lever)))


def _proposal(
    weighed: Weighed,
    lever: str,
    technique: Technique | None,
    narrowness: Narrowness,
    judge: "Callable[[Weighed], Judged]",
) -> Proposal:
    holds, premise, because = judge(weighed)
    gain: float | None = None
    if technique is not None:
        gain = weighed.ceilings[technique].gain_share
    if holds and gain is not None and gain < WORTHWHILE_GAIN:
        holds, because = (
            False,
            f"{because}; but at most {gain:.1%} of request time is there to gain",
        )
    if technique is not None and holds:
        because = f"{because}; {weighed.ceilings[technique].because}"
    return Proposal(
        lever=lever,
        technique=technique,
        narrowness=narrowness,
        gain_share_max=gain,
        premise=premise,
        premise_holds=holds,
        because=because,
    )


def _prompt_layout(at: Weighed) -> Judged:
    now, then = at.facts.cache.reuse_ceiling_share, at.facts.cache.reuse_after_fix_share
    premise = "a change in the prompts would let much more of them be reused"
    if at.facts.shares_no_prefix:
        return False, premise, "the prompts share no prefix"
    if now is None or then is None:
        return None, premise, "trimtab prompts FILE.jsonl would tell"
    why = f"the prompts allow {now:.1%} of their tokens to be reused, after the fix {then:.1%}"
    return then - now >= LITTLE_SHARE, premise, why


def _affinity(at: Weighed) -> Judged:
    premise = "several servers, and prompts that another one held are computed again"
    ranks = at.readings.value(ServedName.RANKS)
    hits, allowed = (
        at.readings.value(ServedName.PREFIX_HIT_SHARE),
        at.facts.cache.reuse_ceiling_share,
    )
    if at.facts.shares_no_prefix:
        return False, premise, "the prompts share no prefix"
    if ranks is not None and ranks <= 1:
        return False, premise, "one server holds everything there is"
    if kv_full(at.readings):
        return False, premise, "memory capacity binds: affinity cannot keep what is evicted"
    if ranks is None or hits is None or allowed is None:
        return None, premise, "hits of the window and trimtab prompts FILE.jsonl would tell"
    why = f"{hits:.0%} of the tokens are reused where the prompts allow {allowed:.0%}"
    return allowed - hits >= LITTLE_SHARE, premise, why


def _enable_caching(at: Weighed) -> Judged:
    premise = "the engine does not cache prefixes, and prompts share some"
    enabled = at.facts.cache.enabled
    if at.facts.shares_no_prefix:
        return False, premise, "the prompts share no prefix"
    if enabled is None:
        return None, premise, "the engine's configuration would tell"
    return not enabled, premise, "it is on already" if enabled else "the engine says caching is off"


def _balance(at: Weighed) -> Judged:
    premise = "one rank is saturated while others have room"
    full, ranks = (
        at.readings.value(ServedName.RANKS_SATURATED),
        at.readings.value(ServedName.RANKS),
    )
    if ranks is not None and ranks <= 1:
        return False, premise, "there is one rank"
    if full is None or ranks is None:
        return None, premise, "KV usage and waiting requests by rank would tell"
    why = f"{full:.0f} of {ranks:.0f} ranks are saturated"
    return 0 < full < ranks, premise, why


def _more_slots(at: Weighed) -> Judged:
    premise = "requests wait for slots while memory and compute have room"
    full, used = slots_full(at.readings, at.facts), kv_used(at.readings)
    if not at.binds(Phase.QUEUE, Resource.ADMISSION):
        return False, premise, "admission does not bind"
    if used is None or full is None:
        missing = (
            "KV usage" if used is None else "the limit of running requests (--requested or slots)"
        )
        return None, premise, f"{missing} would tell"
    if used >= KV_ROOM_SHARE:
        return False, premise, f"{used:.0%} of the KV cache is in use: there is no room for more"
    if at.costs.bandwidth_part is not None and at.costs.bandwidth_part <= 0.5:
        return False, premise, "steps are bound by compute: a larger batch only slows them"
    return (
        full >= 0.95,
        premise,
        f"{full:.0%} of the slots run with {used:.0%} of the KV cache in use",
    )


def _fewer_slots(at: Weighed) -> Judged:
    premise = "running requests are preempted and computed again"
    if kv_used(at.readings) is None:
        return None, premise, "KV usage would tell"
    thrash = preempts(at.readings) and kv_full(at.readings) is not None
    why = "admitting fewer at once ends the recomputation" if thrash else "nothing is preempted"
    return thrash, premise, why


def _more_kv(at: Weighed) -> Judged:
    premise = "KV capacity binds and device memory is left"
    if kv_used(at.readings) is None:
        return None, premise, "KV usage would tell"
    if kv_full(at.readings) is None:
        return False, premise, "KV capacity does not bind"
    free = at.readings.value(ServedName.GPU_MEMORY_USED_SHARE)
    if free is None:
        return None, premise, "device memory (DCGM exporter) would tell"
    return free < 0.9, premise, f"{free:.0%} of device memory is in use"


def _speculation(at: Weighed) -> Judged:
    premise = "decode is bound by memory bandwidth and the batch leaves compute to spare"
    if is_queued(at.readings):
        return False, premise, "requests wait: verification takes compute that they need"
    if at.binds(Phase.DECODE, Resource.MEMORY_BANDWIDTH):
        if at.readings.value(ServedName.DRAFT_ACCEPTANCE_SHARE) is not None:
            return False, premise, "the server drafts already"
        return True, premise, f"batch {at.costs.batch or 1.0:.1f} lies on the memory side"
    if at.costs.bandwidth_part is None:
        return None, premise, at.costs.missing or "the decode batch would tell"
    return False, premise, "decode bandwidth does not bind"


def _chunk(at: Weighed) -> Judged:
    premise = "prefills stall running streams"
    stalled = at.times.stalled_decode
    if stalled is None:
        return None, premise, at.costs.missing or "computed prompt tokens and TPOT would tell"
    return stalled >= STALLED_MIN_SHARE, premise, f"{stalled:.1%} of request time is such a stall"


def _split(at: Weighed) -> Judged:
    holds, premise, why = _chunk(at)
    length, chunk = at.readings.value(ServedName.PROMPT_LENGTH_MEAN), 2048.0
    if holds and length is not None and length < chunk:
        return (
            False,
            premise,
            f"prompts of {length:.0f} tokens fit one chunk: nothing hides their transfer",
        )
    return holds, premise, why


def _replica(at: Weighed) -> Judged:
    premise = "requests queue for admission or memory and what there is works"
    if at.binding is None:
        return (None if at.times.queue is None else False), premise, "no queue is known to bind"
    busy = at.readings.value(ServedName.GPU_BUSY_SHARE)
    if busy is not None and busy < 0.3:
        return False, premise, f"the accelerators are busy only {busy:.0%} of the time"
    return at.binding.phase is Phase.QUEUE, premise, at.binding.because


def _weights_4bit(at: Weighed) -> Judged:
    premise = "reading weights binds decode at a small batch"
    batch = at.costs.batch
    if at.binds(Phase.PREFILL, Resource.COMPUTE):
        return (
            False,
            premise,
            "prefill compute binds: four-bit weights are unpacked there at a cost",
        )
    if batch is not None and batch > SMALL_BATCH:
        return (
            False,
            premise,
            f"batch {batch:.0f} is above {SMALL_BATCH:.0f}: unpacking costs more than it saves",
        )
    if at.binds(Phase.DECODE, Resource.MEMORY_BANDWIDTH):
        return True, premise, f"batch {batch or 1.0:.1f}"
    if at.costs.bandwidth_part is None:
        return None, premise, at.costs.missing or "the decode batch would tell"
    return False, premise, "reading weights does not bind"


def _weights_8bit(at: Weighed) -> Judged:
    premise = "compute binds and the accelerator computes faster in eight bits"
    compute = at.binds(Phase.PREFILL, Resource.COMPUTE) or at.binds(Phase.DECODE, Resource.COMPUTE)
    if not compute:
        unknown = at.binding is None
        return (
            (None if unknown else False),
            premise,
            ("what binds is unknown" if unknown else "compute does not bind"),
        )
    device = at.facts.accelerator
    if device is None or device.flops_8bit is None or not device.flops_16bit:
        return None, premise, "--hardware would tell whether it has eight-bit arithmetic"
    ratio = device.flops_8bit / device.flops_16bit
    return ratio > 1.2, premise, f"{device.name} computes {ratio:.1f} times as fast in eight bits"


def _kv_8bit(at: Weighed) -> Judged:
    premise = "KV capacity binds"
    used = kv_used(at.readings)
    if used is None:
        return None, premise, "KV usage would tell"
    full = kv_full(at.readings)
    return full is not None, premise, full or f"{used:.0%} of the KV cache is in use"


def _layout(at: Weighed) -> Judged:
    premise = "a target for single streams that one accelerator's bandwidth cannot meet"
    target, observed = at.facts.tpot_ms_target, at.readings.value(ServedName.TPOT_MS_MEAN)
    if target is None:
        return None, premise, "--tpot-ms would tell the target"
    if observed is None:
        return None, premise, "TPOT would tell"
    if at.binding is not None and at.binding.phase is Phase.QUEUE:
        return False, premise, "the queue binds: replicas serve it better than a layout"
    return observed > target, premise, f"TPOT {observed:.1f} ms against a target of {target:.1f} ms"


def _narrow(
    quality: QualityExposure,
    dependency: Dependency,
    actuation: Actuation,
    scope: Scope,
    reverse_s: float,
) -> Narrowness:
    return Narrowness(quality, dependency, actuation, scope, reverse_s)


_LEVERS: tuple[tuple[str, Technique | None, Narrowness, "Callable[[Weighed], Judged]"], ...] = (
    (
        "prompt_layout",
        Technique.PREFIX_CACHING,
        _narrow(_NONE, _HERE, _LIVE, _SLICE, 1.0),
        _prompt_layout,
    ),
    (
        "prefix_affine_routing",
        Technique.PREFIX_CACHING,
        _narrow(_NONE, _HERE, _ROUTING, _SLICE, 1.0),
        _affinity,
    ),
    ("balance_ranks", None, _narrow(_NONE, _HERE, _ROUTING, _SLICE, 2.0), _balance),
    ("fewer_slots", None, _narrow(_NONE, _HERE, _RESTART, _ALL, 60.0), _fewer_slots),
    ("more_kv_memory", None, _narrow(_NONE, _HERE, _RESTART, _ALL, 61.0), _more_kv),
    (
        "enable_prefix_caching",
        Technique.PREFIX_CACHING,
        _narrow(_NUMERICS, _HERE, _RESTART, _ALL, 60.0),
        _enable_caching,
    ),
    (
        "ngram_speculation",
        Technique.SPECULATION,
        _narrow(_NUMERICS, _HERE, _RESTART, _SLICE, 60.0),
        _speculation,
    ),
    (
        "smaller_prefill_chunk",
        Technique.PREFILL_CHUNKING,
        _narrow(_NUMERICS, _HERE, _RESTART, _SLICE, 60.0),
        _chunk,
    ),
    ("more_slots", None, _narrow(_NUMERICS, _HERE, _RESTART, _ALL, 62.0), _more_slots),
    (
        "add_replica",
        Technique.REPLICAS,
        _narrow(_NONE, _REPLICA, _RESTART, _ALL, 60.0),
        _replica,
    ),
    (
        "split_prefill_and_decode",
        Technique.DISAGGREGATION,
        _narrow(_NUMERICS, _REPLICA, _ROUTING, _SLICE, 60.0),
        _split,
    ),
    (
        "parallel_layout",
        Technique.PARALLEL_LAYOUT,
        _narrow(_NUMERICS, _HARDWARE, _RESTART, _ALL, 120.0),
        _layout,
    ),
    (
        "four_bit_weights",
        Technique.QUANTIZATION,
        _narrow(_LOSSY, _HERE, _RESTART, _SLICE, 60.0),
        _weights_4bit,
    ),
    (
        "eight_bit_weights_and_activations",
        None,
        _narrow(_LOSSY, _HERE, _RESTART, _SLICE, 61.0),
        _weights_8bit,
    ),
    ("eight_bit_kv", None, _narrow(_LOSSY, _HERE, _RESTART, _SLICE, 62.0), _kv_8bit),
)
