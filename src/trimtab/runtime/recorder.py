"""Measures one request while it passes and makes its record when it has ended.

Text lives in memory until the record is made and never longer: at most 64 KiB of output are kept to see whether the
model is looping; everything else is counted or hashed as it comes.
"""

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import force_setattr

from trimtab.core.events import RequestServed
from trimtab.core.handover import PrefillScore
from trimtab.core.ports import EngineReport, RequestFacts, StreamEvent
from trimtab.core.record import Drafting, Phases, RequestRecord, Segment, Tokens
from trimtab.core.tenants import Priority
from trimtab.core.types import Constraint, ErrorClass
from trimtab.policies.estimates import model_name
from trimtab.policies.router import Routed, explained
from trimtab.runtime.guard import Caller
from trimtab.runtime.handover_passage import Passage
from trimtab.runtime.record_parts import NO_FACTS, NO_PROMPT, Prompt, routing_of
from trimtab.runtime.secret import Secret
from trimtab.workloads.base import looks_looping

OUTPUT_CHARS_KEPT_MAX: Final = 64 * 1024
STATUS_CLIENT_ABORT: Final = 499
WANTS_JSON: Final = frozenset({Constraint.JSON_OBJECT, Constraint.JSON_SCHEMA})
_NOTHING: Final = EngineReport()


class Measurement:
    """One request as it is seen passing. Times are seconds of the monotonic clock unless named `_at_s`."""

    def __init__(self, request_id: str, endpoint: str, *, at_s: float, mono_s: float) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.facts: RequestFacts | None = None
        self.prompt: Prompt | None = None
        self.routed: Routed | None = None
        self.captured: int | None = None
        self.caller: Caller | None = None
        self.salt_ignored = False
        self.marks: tuple[str, ...] = ()
        """Headers that slices are drawn by, with their values hashed."""
        self.retries = 0
        self.tried: set[str] = set()
        """Replicas that failed before anything reached the client."""
        self.was_decoded = False
        """Whether the body goes on without the coding that it came with."""
        self.prefill: PrefillScore | None = None
        self.decided_s = 0.0
        """When it was decided where the prompt is prefilled."""
        self.passage: Passage | None = None
        """The hand-over of its prompt, under way or over; None without one."""
        self.settled = False
        """Whether the router has taken the request back already."""
        self.stage: str | None = None
        self.body = b""
        self.told_upstream: Mapping[str, str] = {}
        self.status = 0
        self.error = ErrorClass.NONE
        self.client_aborted = False
        self.done = False
        self.unreadable = 0
        self.report = _NOTHING
        self._finish_reason: str | None = None
        self._arrived_at_s = at_s
        self._arrived_s = mono_s
        self.first_s: float | None = None
        self._second_s: float | None = None
        self._last_s: float | None = None
        self._done_s: float | None = None
        self._gap_s_max: float | None = None
        self._chunks = 0
        self._text: list[str] = []
        self._text_chars = 0
        self._output_hash: hashlib.blake2b | None = None

    def arrived(self, *, at_s: float, mono_s: float) -> None:
        """Note that the whole request is here; latencies count from now, not from a slow upload's start."""
        self._arrived_at_s = at_s
        self._arrived_s = mono_s

    def failed(self, status: int, error: ErrorClass) -> None:
        """Note how the request failed; the first failure counts."""
        if self.error is ErrorClass.NONE:
            self.status, self.error = status, error

    def aborted(self) -> None:
        """Note that the client left before the end; one that leaves at the end mark has its whole answer."""
        if self.done:
            return
        if self.error is ErrorClass.NONE:
            self.client_aborted = True
        self.failed(STATUS_CLIENT_ABORT, ErrorClass.CLIENT_ABORT)

    def saw(self, event: StreamEvent, *, mono_s: float, secret: Secret) -> None:
        """Take in one event of a stream, or a whole answer that came at once."""
        if event.text:
            self._saw_text(event.text, mono_s, secret)
        if event.done:
            self.done, self._done_s = True, mono_s
        self._finish_reason = event.finish_reason or self._finish_reason
        if event.report is not None:
            self.report = event.report
        if event.error is not None:
            self.failed(self.status, ErrorClass.UPSTREAM_STATUS)

    def saw_texts(self, text: str, times: Sequence[float], secret: Secret) -> None:
        """Take in output that came in as many events as there are times."""
        self._timed(times)
        self._keep_text(text, secret)

    def _saw_text(self, text: str, mono_s: float, secret: Secret) -> None:
        self._timed((mono_s,))
        self._keep_text(text, secret)

    def _timed(self, times: Sequence[float]) -> None:
        self._chunks += len(times)
        if self.first_s is None:
            self.first_s = times[0]
        before = times if self._last_s is None else (self._last_s, *times)
        if self._second_s is None and len(before) > 1:
            self._second_s = before[1]
        gap_s = max(map(operator.sub, before[1:], before), default=None)
        if gap_s is not None:
            self._gap_s_max = max(self._gap_s_max or 0.0, gap_s)
        self._last_s = times[-1]

    def _keep_text(self, text: str, secret: Secret) -> None:
        if self._output_hash is None:
            self._output_hash = secret.hasher()
        self._output_hash.update(text.encode("utf-8", "surrogatepass"))
        if self._text_chars < OUTPUT_CHARS_KEPT_MAX:
            self._text.append(text[: OUTPUT_CHARS_KEPT_MAX - self._text_chars])
            self._text_chars += len(self._text[-1])

    def record(
        self,
        *,
        mono_s: float,
        segments: tuple[Segment, ...],
        hardware: str,
        topology: str,
    ) -> RequestRecord:
        """Make the record of a request that has ended, at its end mark or else now; forgets the output's text.

        Its two times are told by the clock that never jumps, so that they and the duration agree.
        """
        ended_s = mono_s if self._done_s is None else self._done_s
        e2e_ms = (ended_s - self._arrived_s) * 1000.0
        text, self._text = "".join(self._text), []
        prompt, caller, ttft_ms = self.prompt or NO_PROMPT, self.caller, self._ttft_ms
        facts = self.facts if self.facts and self.prompt else NO_FACTS
        record = RequestRecord(
            request_id=self.request_id,
            arrived_at_s=self._arrived_at_s,
            finished_at_s=self._arrived_at_s + e2e_ms / 1000.0,
            endpoint=self.endpoint,
            stream=self._is_stream,
            prefill_replica=self._handed.source.id if self._handed else None,
            session=prompt.session or None,
            label=prompt.label,
            repetition=prompt.repetition,
            phases=self._phases(ttft_ms, e2e_ms),
            ttft_ms=ttft_ms if self._is_stream else None,
            tpot_ms=self._tpot_ms(ttft_ms, e2e_ms),
            e2e_ms=e2e_ms,
            chunk_gap_ms_max=None if self._gap_s_max is None else self._gap_s_max * 1000.0,
            chunk_gap_ms_mean=self._gap_ms_mean(),
            second_gap_ms=self._second_gap_ms(),
            chunks=self._chunks,
            tokens=self._tokens(),
            drafting=self._drafting(),
            temperature=facts.temperature,
            constraint=facts.constraint,
            max_tokens=facts.max_tokens,
            status=self.status,
            error=self.error,
            client_aborted=self.client_aborted,
            finish_reason=self.report.finish_reason or self._finish_reason,
            looping=looks_looping(text) if text else None,
            tenant=caller.tenant if caller else None,
            priority=caller.priority if caller else Priority.NORMAL,
            retries=self.retries,
            salt_ignored=self.salt_ignored,
            model=model_name(facts),
            marks=self.marks,
            prompt_hash=prompt.hash or None,
            output_hash=self._output_hash.hexdigest() if self._output_hash else None,
            segments=segments,
            stage=self.stage,
            hardware=hardware,
            topology=topology,
            **routing_of(self.routed),
        )
        return self._judged(record, text)

    def _judged(self, record: RequestRecord, text: str) -> RequestRecord:
        """Write into a new record what is told from the rest of it; a copy would cost as much as the record itself."""
        force_setattr(record, "output_valid", self._is_valid(record, text))
        force_setattr(record, "unknown", self._unknown(record))
        return record

    @property
    def _ttft_ms(self) -> float | None:
        return None if self.first_s is None else (self.first_s - self._arrived_s) * 1000.0

    def _is_valid(self, record: RequestRecord, text: str) -> bool | None:
        """Say whether an answer that was to be JSON is, None where it was not, was cut off or has several choices."""
        whole = record.ok and record.finish_reason == "stop" and self._choices == 1
        if (
            record.constraint not in WANTS_JSON
            or not whole
            or self._text_chars >= OUTPUT_CHARS_KEPT_MAX
        ):
            return None
        return is_json(text)

    @property
    def _is_stream(self) -> bool:
        return self.facts is not None and self.facts.stream

    @property
    def _handed(self) -> Passage | None:
        """The hand-over whose KV reached the decode side and was not refused there, None without one."""
        passage = self.passage
        return passage if passage is not None and passage.is_delivered else None

    def _phases(self, ttft_ms: float | None, e2e_ms: float) -> Phases:
        """Cut the time into phases that add up to it where the engine said how long its part took."""
        prefill_ms, decode_ms = self.report.prefill_ms, self.report.decode_ms
        if self._is_stream:
            decode_ms = None if ttft_ms is None else e2e_ms - ttft_ms
            before_ms = ttft_ms
        else:
            before_ms = None if decode_ms is None else e2e_ms - decode_ms
        transfer_ms: float | None = 0.0 if self.captured is not None else None
        if self._handed is not None:
            transfer_ms = self._handed.transfer_ms
            prefill_ms = self._handed.with_prefill(prefill_ms)
        queue_ms = None
        if before_ms is not None and prefill_ms is not None:
            queue_ms = max(0.0, before_ms - prefill_ms - (transfer_ms or 0.0))
        return Phases(
            queue_ms=queue_ms,
            prefill_ms=prefill_ms,
            transfer_ms=transfer_ms,
            decode_ms=decode_ms,
        )

    def _tpot_ms(self, ttft_ms: float | None, e2e_ms: float) -> float | None:
        output = self.report.output_tokens
        if output is None or output < 2 or self._choices > 1 or self.error is not ErrorClass.NONE:
            return None
        if not self._is_stream:
            decode_ms = self.report.decode_ms
            return None if decode_ms is None else decode_ms / (output - 1)
        return None if ttft_ms is None else (e2e_ms - ttft_ms) / (output - 1)

    @property
    def _choices(self) -> int:
        return self.facts.n if self.facts else 1

    def _second_gap_ms(self) -> float | None:
        if self.first_s is None or self._second_s is None:
            return None
        return (self._second_s - self.first_s) * 1000.0

    def _gap_ms_mean(self) -> float | None:
        if self._chunks < 2 or self.first_s is None or self._last_s is None:
            return None
        return (self._last_s - self.first_s) * 1000.0 / (self._chunks - 1)

    def _tokens(self) -> Tokens:
        report = self.report
        decision = self.routed.decision if self.routed else None
        is_estimated = report.output_tokens is None and self._is_stream and self._chunks > 0
        return Tokens(
            prompt=report.prompt_tokens,
            predicted=decision.predicted_cached_tokens if decision else None,
            captured=self.captured,
            delivered=report.cached_tokens,
            held_best=decision.held_best_tokens if decision else None,
            ahead=self._handed.computed_ahead if self._handed else None,
            output=self._chunks if is_estimated else report.output_tokens,
            output_estimated=is_estimated,
        )

    def _drafting(self) -> Drafting:
        """Return the draft counts; engines leave them out where a speculating replica drafted nothing."""
        report = self.report
        replica = self.routed.replica if self.routed else None
        drafted, accepted, output = (
            report.drafted_tokens,
            report.accepted_tokens,
            report.output_tokens,
        )
        is_left_out = drafted is None and accepted is None and output is not None
        if is_left_out and replica is not None and replica.speculating:
            drafted, accepted = 0, 0
        steps = None if output is None or accepted is None else output - accepted
        return Drafting(
            drafts=report.drafts,
            drafted=drafted,
            accepted=accepted,
            accepted_per_step=output / steps if output and steps and steps > 0 else None,
        )

    def _unknown(self, record: RequestRecord) -> dict[str, str]:
        """Return why each field that stayed None did; a request that failed has one reason for all."""
        failed = None if self.error is ErrorClass.NONE else f"the request ended: {self.error.value}"
        silent = failed or "the engine did not report it"
        streamed = "not a stream" if not self._is_stream else "fewer than two chunks"
        tokens, phases, drafting = record.tokens, record.phases, record.drafting
        few = "several choices in one answer" if self._choices > 1 else "fewer than two tokens"
        rows: tuple[tuple[str, object, str], ...] = (
            ("ttft_ms", record.ttft_ms, failed or ("no output" if self._is_stream else streamed)),
            (
                "tpot_ms",
                record.tpot_ms,
                silent if failed or self.report.output_tokens is None else few,
            ),
            ("chunk_gap_ms_max", record.chunk_gap_ms_max, failed or streamed),
            ("second_gap_ms", record.second_gap_ms, failed or streamed),
            ("phases.queue_ms", phases.queue_ms, silent),
            ("phases.prefill_ms", phases.prefill_ms, silent),
            ("phases.decode_ms", phases.decode_ms, silent),
            ("tokens.prompt", tokens.prompt, silent),
            ("tokens.delivered", tokens.delivered, silent),
            ("tokens.output", tokens.output, silent),
            ("tokens.captured", tokens.captured, "not sent to a replica"),
            ("tokens.predicted", tokens.predicted, "not routed"),
            ("drafting.accepted", drafting.accepted, silent),
            ("drafting.drafts", drafting.drafts, silent),
            ("repetition", record.repetition, "no prompt, or one too short to tell"),
            ("temperature", record.temperature, "the request leaves it to the engine"),
            ("replica", record.replica, "not sent to a replica"),
        )
        unknown = {name: reason for name, value, reason in rows if value is None}
        if self.unreadable:
            unknown["chunks"] = f"{self.unreadable} events of the stream could not be read"
        return unknown


def is_json(text: str) -> bool:
    """Say whether a text is one JSON value."""
    try:
        msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def served_event(
    record: RequestRecord, routed: Routed | None, prefill: PrefillScore | None = None
) -> RequestServed:
    """Return what the ledger keeps of a request: of a large fleet only the replicas that its decision names."""
    if routed is None:
        return RequestServed(record=record, decision=None, view=None)
    why = explained(routed)
    return RequestServed(
        record=record,
        decision=why.decision,
        view=why.view,
        asked=why.asked,
        draw=routed.draw,
        prefill=prefill,
    )
