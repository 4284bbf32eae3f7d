"""Traces by OTLP/HTTP in the names of the GenAI semantic conventions: one span per request, no text in it.

A caller's `traceparent` is the parent, and the replica gets the span's own, so that an engine that traces continues
it. The packages are an extra: `pip install 'trimtab[otel]'`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from trimtab import __version__
from trimtab.core.config import ConfigError, TelemetryConfig
from trimtab.core.decision import RoutingDecision
from trimtab.core.record import RequestRecord
from trimtab.core.types import ErrorClass
from trimtab.runtime.watch import HasHeaders

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

TRACES_PATH: Final = "/v1/traces"
EXPORT_TIMEOUT_S: Final = 5.0
OPEN_SPANS_MAX: Final = 10_000
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_NS: Final = 1_000_000_000

Value = str | int | float | bool | tuple[str, ...]


class Tracing:
    """Implements `RequestWatch`; raises `ConfigError` where the packages are missing. `close` it in the end.

    `served`: the model and the engine behind the gateway. `exporter`: takes the spans in place of OTLP.
    """

    def __init__(
        self,
        config: TelemetryConfig,
        served: Callable[[], tuple[str, str]],
        *,
        exporter: "SpanExporter | None" = None,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise ConfigError(
                "telemetry.otlp_endpoint needs the OpenTelemetry packages: pip install 'trimtab[otel]'"
            ) from error
        self._served = served
        self._propagator = TraceContextTextMapPropagator()
        self._provider = TracerProvider(
            resource=Resource.create(
                {"service.name": config.service_name, "service.version": __version__}
            ),
            sampler=ParentBasedTraceIdRatio(config.sampled_share),
            shutdown_on_exit=False,
        )
        endpoint = config.otlp_endpoint.rstrip("/")
        if not endpoint.endswith(TRACES_PATH):
            endpoint += TRACES_PATH
        sends = exporter or OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        self._provider.add_span_processor(BatchSpanProcessor(sends))
        self._tracer = self._provider.get_tracer("trimtab", __version__)
        self._open: dict[str, Span] = {}

    def begin(
        self, request_id: str, method: str, path: str, headers: HasHeaders
    ) -> Mapping[str, str]:
        """See `RequestWatch`; returns the `traceparent` (and `tracestate`) of the request's span."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        if len(self._open) >= OPEN_SPANS_MAX:
            return {}
        names = ("traceparent", "tracestate")
        carried = {name: value for name in names if (value := headers.get(name))}
        endpoint = path.partition("?")[0]
        span = self._tracer.start_span(
            _OPERATIONS.get(endpoint, endpoint),
            context=self._propagator.extract(carried),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": endpoint},
        )
        self._open[request_id] = span
        added: dict[str, str] = {}
        self._propagator.inject(added, context=set_span_in_context(span))
        return added

    def end(self, record: RequestRecord, decision: RoutingDecision | None) -> None:
        """See `RequestWatch`."""
        from opentelemetry.trace import Status, StatusCode

        span = self._open.pop(record.request_id, None)
        if span is None:
            return
        model, engine = self._served()
        operation = _OPERATIONS.get(record.endpoint, record.endpoint)
        span.update_name(f"{operation} {model}")
        span.set_attributes(attributes_of(record, decision, model=model, engine=engine))
        if record.error is not ErrorClass.NONE and not record.client_aborted:
            span.set_status(Status(StatusCode.ERROR, record.error.value))
        span.end(end_time=int(record.finished_at_s * _NS))

    def flush(self) -> None:
        """Send what waits, within the export's limit of time."""
        self._provider.force_flush(int(EXPORT_TIMEOUT_S * 1000))

    def close(self) -> None:
        """Send what waits, within the export's limit of time, and end."""
        for span in self._open.values():
            span.end()
        self._open.clear()
        self._provider.shutdown()


def attributes_of(
    record: RequestRecord, decision: RoutingDecision | None, *, model: str, engine: str
) -> dict[str, Value]:
    """Return what a span says of a request: counts, times and names, never text. Unknown values are left out."""
    tokens = record.tokens
    ttft_s = None if record.ttft_ms is None else record.ttft_ms / 1000.0
    fields: dict[str, Value | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(record.endpoint, record.endpoint),
        "gen_ai.provider.name": engine,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model if record.status == 200 else None,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.temperature": record.temperature,
        "gen_ai.request.stream": record.stream,
        "gen_ai.response.finish_reasons": (record.finish_reason,) if record.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": ttft_s,
        "gen_ai.usage.input_tokens": tokens.prompt,
        "gen_ai.usage.output_tokens": tokens.output,
        "gen_ai.usage.cache_read.input_tokens": tokens.delivered,
        "http.response.status_code": record.status,
        "error.type": None if record.error is ErrorClass.NONE else record.error.value,
        "trimtab.request_id": record.request_id,
        "trimtab.replica": record.replica,
        "trimtab.policy": record.policy or None,
        "trimtab.route.reason": None if decision is None else decision.reason.value,
        "trimtab.arm": record.arm.value,
        "trimtab.lever": record.lever,
        "trimtab.tenant": record.tenant or None,
        "trimtab.usage_estimated": True if tokens.output_estimated else None,
        "trimtab.tokens.predicted": tokens.predicted,
        "trimtab.tpot_ms": record.tpot_ms,
    }
    return {name: value for name, value in fields.items() if value is not None}
