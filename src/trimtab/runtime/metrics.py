"""What the gateway says of itself on /metrics, in the names and units of the field: base units, engines' own words.

A reader who knows vLLM's or SGLang's page finds `time_to_first_token_seconds`, `e2e_request_latency_seconds`,
`prompt_tokens_total` and `num_requests_running` here too, with `trimtab_` before them. Labels are closed sets or
replica ids; never text from a request.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from trimtab.core.decision import RoutingDecision
from trimtab.core.handover import HandOver, HandOverOutcome
from trimtab.core.prefix import PrefixStats
from trimtab.core.record import RequestRecord
from trimtab.runtime.guard_metrics import GuardCollector
from trimtab.runtime.rollout_metrics import RolloutCollector
from trimtab.runtime.tallies import CounterTally, HistogramTally

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
TTFT_S_EDGES = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
TPOT_S_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
E2E_S_EDGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKENS_EDGES = tuple(float(4**power) for power in range(11))
T = TypeVar("T", CounterTally, HistogramTally)
ENDPOINTS: Final = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/responses",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
        "/v1/audio/speech",
    }
)
OTHER_ENDPOINT: Final = "other"
"""Stands for every other path: clients choose paths, and each would be a series of its own."""


class ReplicaFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A replica as /metrics shows it; None is unknown and gives no series.

    `running`, `waiting`, `kv_used_share`: by its engine's own metrics, `age_s` old; `in_flight`: this gateway's own.
    """

    replica: str
    ready: bool
    in_flight: int
    restarts: int
    running: float | None = None
    waiting: float | None = None
    kv_used_share: float | None = None
    age_s: float | None = None


class GatewayMetrics:
    """Counters and histograms over finished requests, and gauges of the replicas, in a registry of their own."""

    def __init__(self, in_flight: Callable[[], float]) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._by_replica: list[CounterTally | HistogramTally] = []
        self._requests = self._counter(
            "requests", "Requests finished.", "endpoint", "status", "error", "replica"
        )
        self._decisions = self._counter(
            "routing_decisions", "Routing decisions.", "policy", "reason"
        )
        self._tokens = {
            name: self._counter(name, what, "replica")
            for name, what in (
                ("prompt_tokens", "Prompt tokens of finished requests."),
                ("prompt_tokens_cached", "Prompt tokens that engines reported as reused."),
                ("prompt_tokens_lost", "Prompt tokens computed although a replica held them."),
                ("generation_tokens", "Output tokens that engines counted."),
                ("spec_decode_num_draft_tokens", "Tokens drafted by speculation."),
                ("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."),
            )
        }
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token of a stream.", TTFT_S_EDGES
        )
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "Time per output token after the first.", TPOT_S_EDGES
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Arrival to last byte.", E2E_S_EDGES
        )
        self._queue = self._histogram(
            "request_queue_time_seconds", "Wait before prefill, where engines tell.", TTFT_S_EDGES
        )
        self._prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request.", TOKENS_EDGES
        )
        self._output = self._histogram(
            "request_generation_tokens", "Output tokens of a request.", TOKENS_EDGES
        )
        self._count_hand_overs()
        self._unrecorded = Counter(
            "trimtab_records_failed",
            "Records that their receiver did not take.",
            registry=self._registry,
        )
        Gauge(
            "trimtab_requests_in_flight", "Requests in flight.", registry=self._registry
        ).set_function(in_flight)
        self._fleet = _FleetCollector()
        self._registry.register(self._fleet)
        self.index = _IndexCollector()
        """Shows what `index.stats` returns."""
        self._registry.register(self.index)
        self.guard = GuardCollector()
        """Shows what `guard.counts` returns."""
        self._registry.register(self.guard)
        self.rollouts = RolloutCollector()
        """Shows what it hears of levers."""
        self._registry.register(self.rollouts)

    def _count_hand_overs(self) -> None:
        self._hand_overs = self._counter(
            "hand_overs", "Prompts prefilled on another replica.", "outcome", "cause", "replica"
        )
        self._hand_over_bytes = self._counter(
            "hand_over_bytes", "KV that reached a replica from another.", "replica"
        )
        self._hand_over_time = self._counter(
            "hand_over_seconds", "Time that this KV took, its set-up included.", "replica"
        )

    def _counter(self, name: str, what: str, *labels: str) -> CounterTally:
        return self._shown(CounterTally(f"trimtab_{name}", what, labels))

    def _histogram(self, name: str, what: str, edges: tuple[float, ...]) -> HistogramTally:
        return self._shown(HistogramTally(f"trimtab_{name}", what, ("arm", "replica"), edges))

    def _shown(self, made: T) -> T:
        self._registry.register(made)
        if made.labels[-1] == "replica":
            self._by_replica.append(made)
        return made

    def show_fleet(self, figures: Callable[[], Iterable[ReplicaFigures]]) -> None:
        """Show the replicas too, as `figures` tells them at each scrape."""
        self._fleet.figures = figures

    def observe(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """Count one finished request; what is unknown is not counted."""
        replica = record.replica or ""
        endpoint = record.endpoint if record.endpoint in ENDPOINTS else OTHER_ENDPOINT
        labels = (endpoint, str(record.status), record.error.value, replica)
        self._requests.add(labels, 1)
        if decision is not None:
            self._decisions.add((decision.policy, decision.reason.value), 1)
        tokens = record.tokens
        output = None if tokens.output_estimated else tokens.output
        counts = {
            "prompt_tokens": tokens.prompt,
            "prompt_tokens_cached": tokens.delivered,
            "prompt_tokens_lost": tokens.skipped_lost,
            "generation_tokens": output,
            "spec_decode_num_draft_tokens": record.drafting.drafted,
            "spec_decode_num_accepted_tokens": record.drafting.accepted,
        }
        here = (replica,)
        for name, count in counts.items():
            if count is not None:
                self._tokens[name].add(here, count)
        observed = (
            (self._ttft, record.ttft_ms, 1000.0),
            (self._tpot, record.tpot_ms, 1000.0),
            (self._e2e, record.e2e_ms, 1000.0),
            (self._queue, record.phases.queue_ms, 1000.0),
            (self._prompt, tokens.prompt, 1.0),
            (self._output, output, 1.0),
        )
        there = (record.arm.value, replica)
        for histogram, value, scale in observed:
            if value is not None:
                histogram.observe(there, value / scale)

    def observe_hand_over(self, one: HandOver) -> None:
        """Count a hand-over that has ended; what is unknown is not counted."""
        cause = "" if one.cause is None else one.cause.value
        self._hand_overs.add((one.outcome.value, cause, one.target), 1)
        if one.outcome is not HandOverOutcome.DELIVERED:
            return
        if one.bytes is not None:
            self._hand_over_bytes.add((one.target,), one.bytes)
        if one.transfer_ms is not None:
            took_ms = (one.export_ms or 0.0) + (one.setup_ms or 0.0) + one.transfer_ms
            self._hand_over_time.add((one.target,), took_ms / 1000.0)

    def forget(self, replica: str) -> None:
        """Drop the series of a replica that left: where replicas come and go, the page must not grow for ever."""
        for tally in self._by_replica:
            tally.forget(replica)

    def record_failed(self) -> None:
        """Count a record that its receiver did not take."""
        self._unrecorded.inc()

    def families(self) -> Iterable[Metric]:
        """Return every family that the page has, with what it knows now."""
        return self._registry.collect()

    def page(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)


_REPLICA_GAUGES: Final[tuple[tuple[str, str, Callable[[ReplicaFigures], float | None]], ...]] = (
    ("replica_ready", "Whether a replica takes new requests.", lambda one: float(one.ready)),
    (
        "replica_requests_in_flight",
        "Requests that this gateway has on a replica.",
        lambda one: one.in_flight,
    ),
    (
        "replica_num_requests_running",
        "Requests that its engine decodes, by its own metrics.",
        lambda one: one.running,
    ),
    (
        "replica_num_requests_waiting",
        "Requests that wait in its engine, by its own metrics.",
        lambda one: one.waiting,
    ),
    (
        "replica_kv_cache_usage_ratio",
        "Share of its KV cache in use (of the fullest rank), 0 to 1.",
        lambda one: one.kv_used_share,
    ),
    (
        "replica_reading_age_seconds",
        "Age of the latest reading of its engine's metrics.",
        lambda one: one.age_s,
    ),
)


class _FleetCollector(Collector):
    """Makes the replicas' gauges at each scrape, so that none outlives its replica."""

    def __init__(self) -> None:
        self.figures: Callable[[], Iterable[ReplicaFigures]] = tuple

    def collect(self) -> Iterator[Metric]:
        figures = tuple(self.figures())
        for name, what, read in _REPLICA_GAUGES:
            family = GaugeMetricFamily(f"trimtab_{name}", what, labels=("replica",))
            for one in figures:
                value = read(one)
                if value is not None:
                    family.add_metric((one.replica,), value)
            yield family
        restarts = CounterMetricFamily(
            "trimtab_replica_restarts", "Crashes or restarts of a replica.", labels=("replica",)
        )
        for one in figures:
            restarts.add_metric((one.replica,), one.restarts)
        yield restarts


class _IndexCollector(Collector):
    """Says at each scrape how full the prefix index is, once there is one."""

    def __init__(self) -> None:
        self.stats: Callable[[], PrefixStats | None] = lambda: None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats()
        yield GaugeMetricFamily(
            "trimtab_prefix_index_blocks",
            "Blocks in the prefix index, those that many replicas hold counted for each.",
            value=None if stats is None else stats.blocks,
        )
        yield GaugeMetricFamily(
            "trimtab_prefix_index_blocks_max",
            "Most blocks that the prefix index may have (`routing.index_blocks_max`).",
            value=None if stats is None else stats.blocks_max,
        )
        yield CounterMetricFamily(
            "trimtab_prefix_index_blocks_evicted",
            "Blocks that the prefix index dropped for its bound, not by the engines' own rules.",
            value=None if stats is None else stats.evictions,
        )
