"""Prometheus rules of the gateway's metrics: a few recorded ratios and latencies, and alerts with what to do."""

import json
from typing import Final

import msgspec

from trimtab.interfaces.exports import gauge, quantile, rate, ratio, series

OVER: Final = "5m"
ERRORS_MAX: Final = 0.05
FEW_PER_S: Final = 0.05
"""Below one request in twenty seconds a share of errors says little: nobody is woken for it."""

PAUSED_TOO_LONG: Final = "30m"
_SERVERS: Final = (
    '{error!~"none|client_abort|bad_request|context_overflow|unauthenticated|limited"}'
)

_BAD: Final = '{verdict=~"fail|error"}'
_PAUSED: Final = '{state="paused"}'
_ENDED: Final = '{state=~"rolled_back|expired"}'
_NOT_DELIVERED: Final = '{outcome!="delivered"}'


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded expression."""

    record: str
    expr: str


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert: when, for how long, how urgent, and what it says. `page`: somebody is to be woken."""

    alert: str
    expr: str
    wait: str
    page: bool
    summary: str
    description: str


def records() -> tuple[Record, ...]:
    """Return what is recorded: a name says metric, unit and labels as `level:metric:operation`."""
    cached = rate("prompt_tokens_cached", "replica", over=OVER)
    prompt = rate("prompt_tokens", "replica", over=OVER)
    lost = rate("prompt_tokens_lost", over=OVER)
    accepted = rate("spec_decode_num_accepted_tokens", "replica", over=OVER)
    drafted = rate("spec_decode_num_draft_tokens", "replica", over=OVER)
    made = [
        Record(record=f"arm:trimtab_{short}_seconds:p{q * 100:.0f}_5m", expr=_latency(name, q))
        for short, name in (
            ("ttft", "time_to_first_token_seconds"),
            ("tpot", "time_per_output_token_seconds"),
            ("e2e", "e2e_request_latency_seconds"),
        )
        for q in (0.5, 0.95)
    ]
    shares = (
        Record(record="trimtab_requests_failed:ratio_5m", expr=_failed()),
        Record(record="replica:trimtab_prompt_tokens_cached:ratio_5m", expr=ratio(cached, prompt)),
        Record(
            record="trimtab_prompt_tokens_lost:ratio_5m",
            expr=ratio(lost, rate("prompt_tokens", over=OVER)),
        ),
        Record(record="replica:trimtab_draft_acceptance:ratio_5m", expr=ratio(accepted, drafted)),
    )
    return (*made, *shares)


def _latency(name: str, q: float) -> str:
    return quantile(name, q, "arm", over=OVER)


def _failed() -> str:
    failed = rate("requests", over=OVER, where=_SERVERS)
    return f"({ratio(failed, rate('requests', over=OVER))}) or vector(0)"


def alerts() -> tuple[Alert, ...]:
    """Return the alerts, the most urgent first."""
    return (*_urgent(), *_of_levers(), *_of_fleet())


def _urgent() -> tuple[Alert, ...]:
    busy = f"{rate('requests', over=OVER)} > {FEW_PER_S}"
    return (
        Alert(
            alert="TrimtabNoReplicaReady",
            expr=f"sum({gauge('replica_ready')}) == 0",
            wait="1m",
            page=True,
            summary="No replica takes requests",
            description="Every request is answered with 503. See the page and `trimtab ledger list`.",
        ),
        Alert(
            alert="TrimtabRequestsFail",
            expr=f"{_failed()} > {ERRORS_MAX} and {busy}",
            wait="5m",
            page=True,
            summary="More than 5% of requests fail for reasons of the servers",
            description="Share {{ $value | humanizePercentage }} over five minutes. If a lever is being proven, "
            "its gate on errors has looked at it; `trimtab rollout list` says where it is.",
        ),
        Alert(
            alert="TrimtabLedgerNotWritten",
            expr=f"{gauge('ledger_healthy')} == 0",
            wait="1m",
            page=True,
            summary="The ledger cannot be written: no lever is promoted",
            description="Traffic goes on. Make room on the disk of ledger.path; it is tried again every ten seconds.",
        ),
    )


def _unless_long_ended() -> str:
    """Leave out levers that ended an hour ago: what their gates said last stays shown, and asks for nothing."""
    ended = gauge("lever_state", where=_ENDED)
    return f"unless ignoring (verdict, state) ({ended} == 1 and {ended} offset 1h == 1)"


def _of_levers() -> tuple[Alert, ...]:
    return (
        Alert(
            alert="TrimtabLeverFails",
            expr=f"{gauge('lever_gates', where=_BAD)} > 0 {_unless_long_ended()}",
            wait="0m",
            page=False,
            summary="Lever {{ $labels.lever }}: {{ $value }} gates say {{ $labels.verdict }}",
            description="A fail takes it back at once, an error pauses it. "
            "`trimtab rollout show {{ $labels.lever }}` says which.",
        ),
        Alert(
            alert="TrimtabTriggerFired",
            expr=f"increase({series('lever_triggers_fired')}[10m]) > 0",
            wait="0m",
            page=False,
            summary="A trigger took lever {{ $labels.lever }} off",
            description="Its premise is gone. `trimtab ledger chain {{ $labels.lever }}` says what was seen.",
        ),
        Alert(
            alert="TrimtabLeverPaused",
            expr=f"{gauge('lever_state', where=_PAUSED)} == 1",
            wait=PAUSED_TOO_LONG,
            page=False,
            summary="Lever {{ $labels.lever }} is paused and waits for a person",
            description="Resume it or take it back; after ten peak cycles it is taken back by itself.",
        ),
        Alert(
            alert="TrimtabVerificationDue",
            expr=f"{gauge('lever_verification_due')} == 1",
            wait="1d",
            page=False,
            summary="Lever {{ $labels.lever }} is to be verified again",
            description="Another lever that it meets has changed: `trimtab rollout verify {{ $labels.lever }}`.",
        ),
    )


def _of_fleet() -> tuple[Alert, ...]:
    return (
        Alert(
            alert="TrimtabReplicaNotReady",
            expr=f"{gauge('replica_ready')} == 0",
            wait="5m",
            page=False,
            summary="Replica {{ $labels.replica }} takes no requests",
            description="For five minutes. Its reason stands on the page; its log in the folder of engine logs.",
        ),
        Alert(
            alert="TrimtabReplicaRestarts",
            expr=f"increase({series('replica_restarts')}[15m]) > 2",
            wait="0m",
            page=False,
            summary="Replica {{ $labels.replica }} restarts again and again",
            description="More than twice within 15 minutes. Its last words: "
            "`trimtab ledger list --kind replica_crashed`.",
        ),
        Alert(
            alert="TrimtabReadingStale",
            expr=f"{gauge('replica_reading_age_seconds')} > 60",
            wait="5m",
            page=False,
            summary="Metrics of replica {{ $labels.replica }} were not read for a minute",
            description="What rests on them is unknown meanwhile. Its /metrics may be slow, or want a key.",
        ),
        Alert(
            alert="TrimtabVerdictsNotTold",
            expr=f"increase({series('verdicts_told')}{_NOT_DELIVERED}[15m]) > 0",
            wait="0m",
            page=False,
            summary="Verdicts did not reach the sink {{ $labels.sink }}",
            description="{{ $labels.outcome }}: see telemetry.verdict_webhook and telemetry.verdict_log.",
        ),
    )


def rules_yaml() -> str:
    """Return the rules as a file that Prometheus loads."""
    lines = [
        "# Generated by `trimtab export prometheus-rules`. Thresholds are a start: set yours.",
        "groups:",
        "  - name: trimtab-records",
        "    rules:",
    ]
    for one in records():
        lines += [f"      - record: {one.record}", f"        expr: {json.dumps(one.expr)}"]
    lines += ["  - name: trimtab-alerts", "    rules:"]
    for each in alerts():
        lines += [
            f"      - alert: {each.alert}",
            f"        expr: {json.dumps(each.expr)}",
            f"        for: {each.wait}",
            "        labels:",
            f"          severity: {'page' if each.page else 'ticket'}",
            "        annotations:",
            f"          summary: {json.dumps(each.summary)}",
            f"          description: {json.dumps(each.description)}",
        ]
    return "\n".join(lines) + "\n"
