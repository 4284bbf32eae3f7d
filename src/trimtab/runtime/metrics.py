"""What the gateway says of itself on /metrics. Labels are closed sets or replica ids; never text from a request."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
TTFT_S_EDGES = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0)
TPOT_S_EDGES = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1.0)
E2E_S_EDGES = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class GatewayMetrics:
    """Counters and histograms over finished requests, in a registry of their own."""

    def __init__(self, in_flight: Callable[[], float]) -> None:
        self._registry = CollectorRegistry(auto_describe=True)
        self._requests = self._counter(
            "requests", "Requests finished.", "endpoint", "status", "error", "replica"
        )
        self._decisions = self._counter(
            "routing_decisions", "Routing decisions.", "policy", "reason"
        )
        self._tokens = self._counter("tokens", "Tokens of finished requests.", "kind", "replica")
        self._ttft = self._histogram("ttft", "Time to first token.", TTFT_S_EDGES)
        self._tpot = self._histogram("tpot", "Time per output token after the first.", TPOT_S_EDGES)
        self._e2e = self._histogram("e2e", "Arrival to last byte.", E2E_S_EDGES)
        self._unrecorded = self._counter(
            "records_failed", "Records that their receiver did not take."
        )
        Gauge(
            "trimtab_requests_in_flight", "Requests in flight.", registry=self._registry
        ).set_function(in_flight)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"trimtab_{name}", what, labels, registry=self._registry)

    def _histogram(self, name: str, what: str, edges: tuple[float, ...]) -> Histogram:
        labels = ("arm", "replica")
        return Histogram(
            f"trimtab_{name}_seconds", what, labels, buckets=edges, registry=self._registry
        )

    def observe(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """Count one finished request; what is unknown is not counted."""
        replica = record.replica or ""
        self._requests.labels(
            record.endpoint, str(record.status), record.error.value, replica
        ).inc()
        if decision is not None:
            self._decisions.labels(decision.policy, decision.reason.value).inc()
        tokens = record.tokens
        counts = {
            "prompt": tokens.prompt,
            "cached": tokens.delivered,
            "output": None if tokens.output_estimated else tokens.output,
            "skipped_lost": tokens.skipped_lost,
            "drafted": record.drafting.drafted,
            "accepted": record.drafting.accepted,
        }
        for kind, count in counts.items():
            if count is not None:
                self._tokens.labels(kind, replica).inc(count)
        timings = (
            (self._ttft, record.ttft_ms),
            (self._tpot, record.tpot_ms),
            (self._e2e, record.e2e_ms),
        )
        for histogram, value_ms in timings:
            if value_ms is not None:
                histogram.labels(record.arm.value, replica).observe(value_ms / 1000.0)

    def record_failed(self) -> None:
        """Count a record that its receiver did not take."""
        self._unrecorded.inc()

    def page(self) -> bytes:
        """Return the text exposition."""
        return generate_latest(self._registry)
