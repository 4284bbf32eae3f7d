"""Synthetic readings, records and situations for tests of the diagnosis and the levers."""

import msgspec

from trimtab.core.cost import CostModel, SpeculationTable, StepPoint
from trimtab.core.evidence import Evidence, Reading, Readings, Unknown, Window
from trimtab.core.lever import RampPlan, Situation
from trimtab.core.record import Drafting, Phases, RequestRecord, Tokens
from trimtab.core.revision import Model, Revision, Speculation, SpeculationMethod
from trimtab.core.types import Mode
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.names import FleetFacts, Name, PerLabel

WINDOW = Window(0.0, 100.0)
FLEET = FleetFacts(
    replicas=2, slots=8, context_tokens=2048, threads=1, memory_available_bytes=8_000_000_000
)
NGRAM = Speculation(method=SpeculationMethod.NGRAM_MOD, match_tokens=12, draft_tokens_max=48)

# One thread that reads weights for 20 ms a step and adds 4 ms per stream; 10 ms per prompt token.
BANDWIDTH_COST = CostModel(
    prefill_base_ms=5.0,
    prefill_ms_per_token=10.0,
    step_base_ms=20.0,
    step_ms_per_stream=4.0,
    prefill_samples=6,
    step_samples=6,
    source="test",
)
COMPUTE_COST = msgspec.structs.replace(BANDWIDTH_COST, step_base_ms=4.0, step_ms_per_stream=10.0)


def evidence(name: str, value: float, *, samples: int = 100) -> Evidence:
    """One reading of the window."""
    return Evidence(
        id=f"test/{name}",
        name=name,
        value=value,
        unit="",
        source="test",
        window=WINDOW,
        samples=samples,
    )


def readings(**values: float | str | None) -> Readings:
    """Readings by name; None leaves one out, text makes it unknown with that reason. Defaults: a calm fleet."""
    defaults: dict[str, float | str | None] = {
        Name.REQUESTS: 100,
        Name.ERROR_SHARE: 0.0,
        Name.QUEUE_SHARE: 0.0,
        Name.PREFILL_SHARE: 0.1,
        Name.TRANSFER_SHARE: 0.0,
        Name.DECODE_SHARE: 0.9,
        Name.REQUEST_MS_TOTAL: 400_000.0,
        Name.PROMPT_TOKENS: 100_000,
        Name.COMPUTED_TOKENS: 10_000,
        Name.SKIPPED_TOKENS_LOST: 0,
        Name.SKIPPED_LOST_SHARE: 0.0,
        Name.DECODE_BATCH_MEAN: 1.0,
        Name.DECODE_MS_PER_TOKEN: 24.0,
        Name.DECODE_BESIDE_PREFILL_SHARE: 0.0,
        Name.QUEUE_BEHIND_PREFILL_SHARE: 0.0,
        Name.QUEUE_SLOTS_FULL_SHARE: 0.0,
        Name.DECODE_RUNNING_SHARE: 0.5,
        Name.PREFILL_RUNNING_SHARE: 0.1,
        Name.BUSY_SHARE: 0.6,
        Name.CPU_BUSY_SHARE: 0.6,
        Name.MEMORY_RESIDENT_BYTES: 1_000_000_000,
        Name.KV_RUNNING_SHARE: 0.1,
        Name.KV_RUNNING_SHARE_P95: 0.2,
    }
    merged = {**defaults, **values}
    items: list[Reading] = []
    for name, value in merged.items():
        if isinstance(value, str):
            items.append(Unknown(str(name), value))
        elif value is not None:
            items.append(evidence(str(name), float(value)))
    return Readings(tuple(items))


PREFILL_BOUND: dict[str, float | str | None] = {
    Name.QUEUE_SHARE: 0.30,
    Name.PREFILL_SHARE: 0.45,
    Name.DECODE_SHARE: 0.25,
    Name.QUEUE_BEHIND_PREFILL_SHARE: 0.90,
    Name.COMPUTED_TOKENS: 60_000,
    Name.SKIPPED_TOKENS_LOST: 30_000,
    Name.SKIPPED_LOST_SHARE: 0.50,
    Name.REQUEST_MS_TOTAL: 1_300_000.0,
    Name.PREFILL_MS_PER_TOKEN: 10.5,
    Name.PREFILL_RUNNING_SHARE: 0.7,
    Name.BUSY_SHARE: 0.85,
    Name.CPU_BUSY_SHARE: 0.85,
}
"""Round robin over two replicas: half of the computed prompt tokens were held by the other one."""

LABELS: dict[str, float | str | None] = {
    PerLabel.REQUEST_SHARE.of("edit"): 0.5,
    PerLabel.DECODE_SHARE.of("edit"): 0.6,
    PerLabel.REQUEST_SHARE.of("question"): 0.5,
    PerLabel.DECODE_SHARE.of("question"): 0.4,
}


def table(
    ratios: dict[int, float],
    *,
    content: str = "edit",
    noise: dict[int, float] | None = None,
    rounds: dict[int, int] | None = None,
) -> SpeculationTable:
    """A table whose throughput with speculation is `ratio` times the one without, by batch.

    `noise`: factor by which every other of the rounds is higher, and the rest lower; `rounds`: 4 if not said.
    """
    off = {batch: 40.0 * batch**0.7 for batch in ratios}
    count = {batch: (rounds or {}).get(batch, 4) for batch in ratios}

    def seen(batch: int) -> tuple[float, ...]:
        factor = (noise or {}).get(batch, 1.0)
        middle = off[batch] * ratios[batch]
        return tuple(middle * factor ** (-1 if at % 2 else 1) for at in range(count[batch]))

    return SpeculationTable(
        speculation=NGRAM,
        off=tuple(
            StepPoint(batch=b, tokens_per_s=off[b], samples=count[b], rounds=(off[b],) * count[b])
            for b in sorted(ratios)
        ),
        on=tuple(
            StepPoint(
                batch=b,
                tokens_per_s=off[b] * ratios[b],
                samples=count[b],
                accepted_per_step=2.5,
                rounds=seen(b),
            )
            for b in sorted(ratios)
        ),
        content=content,
    )


GAINS_UNTIL_3 = table({1: 1.6, 2: 1.3, 4: 0.7, 8: 0.4})


def situation(
    seen: Readings,
    *,
    cost: CostModel = BANDWIDTH_COST,
    speculation: SpeculationTable | None = GAINS_UNTIL_3,
    replicas: int = 2,
    adopted: tuple[str, ...] = (),
    refused: tuple[str, ...] = (),
    target_gain: float = 0.05,
) -> Situation:
    """A situation with the diagnosis of its readings."""
    fleet = msgspec.structs.replace(FLEET, replicas=replicas)
    return Situation(
        diagnosis=diagnose(
            seen, cost, fleet, now_s=100.0, scope="baseline", speculation=speculation
        ),
        readings=seen,
        cost=cost,
        speculation=speculation,
        revision=Revision(
            engine="llamacpp",
            engine_version="1",
            model=Model(path="model.gguf", sha256="0" * 64, name="default"),
        ),
        replicas=replicas,
        target_gain=target_gain,
        now_s=100.0,
        ramp=RampPlan(),
        mode=Mode.ACT,
        owner="tester",
        adopted=adopted,
        refused=refused,
    )


def request(
    at_s: float,
    *,
    queue_ms: float = 0.0,
    prefill_ms: float = 100.0,
    decode_ms: float = 900.0,
    replica: str = "replica-1",
    tokens: Tokens | None = None,
    label: str | None = None,
    drafting: Drafting | None = None,
    **changes: object,
) -> RequestRecord:
    """One served request; times follow from its phases."""
    total_ms = queue_ms + prefill_ms + decode_ms
    tokens = tokens or Tokens(
        prompt=100, predicted=0, captured=0, delivered=0, held_best=0, output=31
    )
    record = RequestRecord(
        request_id=f"request-{at_s}-{replica}",
        arrived_at_s=at_s,
        finished_at_s=at_s + total_ms / 1000.0,
        endpoint="/v1/chat/completions",
        stream=True,
        replica=replica,
        label=label,
        phases=Phases(
            queue_ms=queue_ms, prefill_ms=prefill_ms, transfer_ms=0.0, decode_ms=decode_ms
        ),
        ttft_ms=queue_ms + prefill_ms,
        tpot_ms=None if not tokens.output else decode_ms / max(1, tokens.output - 1),
        e2e_ms=total_ms,
        tokens=tokens,
        drafting=drafting or Drafting(),
        batch_at_admission=1,
        concurrency_at_admission=1,
        status=200,
    )
    return msgspec.structs.replace(record, **changes)
