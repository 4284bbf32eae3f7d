"""What `trimtab plan --json` prints: one answer about layouts of a model on accelerators.

Terminal, page and JSON are made of this one structure, so that they cannot differ.
"""

from collections.abc import Sequence

import msgspec

from trimtab.core.layout import Demand, EstimateSource, Expected, Layout, MemoryPart, Span, Targets
from trimtab.planning.candidates import Candidate, Standing
from trimtab.planning.capacity import Capacity
from trimtab.planning.layouts import Impossible
from trimtab.planning.plan import Plan
from trimtab.planning.plan_ask import Ask, Goal
from trimtab.planning.relief import Relief
from trimtab.planning.rules import Remark
from trimtab.planning.settle import Measurement, chance_of
from trimtab.planning.split import Split
from trimtab.planning.steps import Growth, Spread
from trimtab.workloads.trace_load import TraceLoad

FOUND = 0
NOTHING_MEETS = 1
"""Exit codes; 2 is wrong usage and 3 an error."""


class MemoryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every byte of the fullest rank: `parts`, `kv_bytes` and `kept` sum up to `device_bytes`."""

    fits: bool
    because: str
    device_bytes: float
    usable_bytes: float
    kept: MemoryPart
    parts: tuple[MemoryPart, ...]
    kv_bytes: float
    kv_tokens: float
    kv_bytes_per_token_rank: float
    kv_bytes_per_token_replica: float
    streams: float


class LayoutAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One layout. Times are null where nothing was asked of it because it does not fit; `chance`: how likely it meets
    the targets, null where an interval is unknown.
    """

    label: str
    layout: Layout
    devices: int
    standing: Standing
    because: str
    canary: bool
    meets: bool | None
    sure: bool | None
    chance: float | None
    ttft_ms: Span | None
    tpot_ms: Span | None
    output_tokens_per_s: float | None
    output_tokens_per_s_device: float | None
    source: EstimateSource | None
    expected: Expected | None
    capacity: float | None
    memory: MemoryAnswer
    remarks: tuple[Remark, ...]


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan was made for. Sources say where facts were read; `local`: it is the CPUs of this machine."""

    accelerator: str
    accelerator_source: str
    devices: int
    nodes: int
    link: str
    link_source: str
    node_link: str | None
    node_link_source: str | None
    local: bool = False


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A plan. `chosen` is null where nothing meets the targets; `layouts` then begin with the nearest.

    `layouts`: all that sizes allow, the best first; `impossible`: sizes that they forbid; `growth`: what devices add to
    one replica; `spread`: what they add to the fleet; `unknown`: facts that were not given; `relief`: what would do
    where nothing meets the targets.
    """

    found: bool
    goal: Goal
    because: str
    model: str
    model_source: str
    model_notes: tuple[str, ...]
    hardware: Hardware
    demand: Demand
    targets: Targets
    fits_on: int | None
    chosen: LayoutAnswer | None
    next: tuple[LayoutAnswer, ...]
    layouts: tuple[LayoutAnswer, ...]
    impossible: tuple[Impossible, ...]
    growth: tuple[Growth, ...]
    spread: tuple[Spread, ...]
    capacity: Capacity | None
    relief: Relief | None
    split: Split
    uncertain: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    unknown: tuple[str, ...]
    sources: tuple[str, ...]
    trace: TraceLoad | None = None

    @property
    def exit_code(self) -> int:
        """The code that the command ends with."""
        return FOUND if self.found else NOTHING_MEETS


def answer_of(
    found: Plan,
    ask: Ask,
    *,
    sources: Sequence[str] = (),
    trace: TraceLoad | None = None,
    local: bool = False,
) -> PlanAnswer:
    """Put a plan into the words of its answer."""
    layouts = tuple(_layout(each, ask.judged.targets) for each in found.ranked)
    following = [each for each in layouts if each.standing is Standing.NEXT]
    cluster = ask.cluster
    return PlanAnswer(
        found=found.chosen is not None,
        goal=found.goal,
        because=found.because,
        model=ask.model.name,
        model_source=ask.model.source,
        model_notes=ask.model.notes,
        hardware=Hardware(
            accelerator=ask.accelerator.name,
            accelerator_source=ask.accelerator.source,
            devices=cluster.devices,
            nodes=cluster.nodes,
            link=cluster.link.name,
            link_source=cluster.link.source,
            node_link=cluster.joint.name if cluster.joint else None,
            node_link_source=cluster.joint.source if cluster.joint else None,
            local=local,
        ),
        demand=ask.demand,
        targets=ask.targets,
        fits_on=found.fits.devices,
        chosen=layouts[0] if found.chosen is not None else None,
        next=tuple(following),
        layouts=layouts,
        impossible=found.impossible,
        growth=found.growth,
        spread=found.spread,
        capacity=found.capacity,
        relief=found.relief,
        split=found.split,
        uncertain=tuple(each for each in found.uncertain if each not in sources),
        measurements=found.measurements,
        unknown=found.unknown,
        sources=tuple(sources),
        trace=trace,
    )


def _layout(each: Candidate, targets: Targets) -> LayoutAnswer:
    expected, layout = each.expected, each.layout
    tokens = expected.output_tokens_per_s if expected else None
    return LayoutAnswer(
        label=layout.label,
        layout=layout,
        devices=layout.devices,
        standing=each.standing,
        because=each.because,
        canary=each.canary,
        meets=each.verdict.meets if each.verdict else None,
        sure=each.verdict.sure if each.verdict else None,
        chance=chance_of(each, targets),
        ttft_ms=expected.ttft_ms if expected else None,
        tpot_ms=expected.tpot_ms if expected else None,
        output_tokens_per_s=tokens,
        output_tokens_per_s_device=tokens / layout.devices if tokens is not None else None,
        source=expected.source if expected else None,
        expected=expected,
        capacity=each.capacity,
        memory=_memory(each),
        remarks=each.remarks,
    )


def _memory(each: Candidate) -> MemoryAnswer:
    memory = each.memory
    return MemoryAnswer(
        fits=memory.fits,
        because=memory.because,
        device_bytes=memory.device_bytes,
        usable_bytes=memory.usable_bytes,
        kept=memory.kept,
        parts=memory.parts,
        kv_bytes=memory.kv_bytes,
        kv_tokens=memory.kv_tokens,
        kv_bytes_per_token_rank=memory.kv_bytes_per_token_rank,
        kv_bytes_per_token_replica=memory.kv_bytes_per_token_rank * each.layout.tp * each.layout.pp,
        streams=memory.streams,
    )
