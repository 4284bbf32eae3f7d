"""A Grafana dashboard of the gateway's metrics: rows from traffic to rollouts, each panel with what it shows.

The layout is a table of panels; a panel's description is that of the metrics it reads, as /metrics gives it. Arms and
states are told apart by name in the legend, not by colour alone.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trimtab.interfaces.exports import definitions, gauge, quantile, rate, ratio

UID: Final = "trimtab-gateway"
SCHEMA_VERSION: Final = 39
WIDTH: Final = 24
PANEL_WIDTH: Final = 8
PANEL_HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


class Line(msgspec.Struct, frozen=True):
    """An expression and how its lines are named."""

    expr: str
    legend: str


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """A panel: title, unit in Grafana's words, lines, and the metrics that it reads."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    metrics: tuple[str, ...]
    top: float | None = None
    kind: str = "timeseries"


class Row(msgspec.Struct, frozen=True):
    """A heading with its panels."""

    title: str
    panels: tuple[Panel, ...]


def _latency(title: str, name: str) -> Panel:
    lines = tuple(
        Line(quantile(name, q, "arm"), f"{{{{arm}}}} p{q * 100:.0f}") for q in (0.5, 0.95)
    )
    return Panel(title=title, unit="s", lines=lines, metrics=(name,))


def _rates(title: str, unit: str, *names: tuple[str, str]) -> Panel:
    lines = tuple(Line(rate(name), said) for name, said in names)
    return Panel(title=title, unit=unit, lines=lines, metrics=tuple(name for name, _ in names))


def _by_replica(title: str, unit: str, name: str, *, top: float | None = None) -> Panel:
    return Panel(
        title=title, unit=unit, lines=(Line(gauge(name), "{{replica}}"),), metrics=(name,), top=top
    )


def _of_lever(title: str, unit: str, name: str, legend: str, kind: str = "timeseries") -> Panel:
    lines = (Line(gauge(name), legend),)
    return Panel(title=title, unit=unit, lines=lines, metrics=(name,), kind=kind)


def rows() -> tuple[Row, ...]:
    """Return the dashboard's rows from top to bottom."""
    return (
        Row("Rollouts", _rollouts()),
        Row("Traffic", _traffic()),
        Row("Latency by arm", _latencies()),
        Row("Tokens, cache and speculation", (*_tokens(), *_index())),
        Row("Fleet", _fleet()),
        Row("Hand-overs of KV", _hand_overs()),
        Row("Guard and telemetry", _guard()),
    )


def _rollouts() -> tuple[Panel, ...]:
    fired = Line(rate("lever_triggers_fired", "lever", over="10m"), "{{lever}}")
    flags = (
        Line(gauge("promotions_frozen"), "promotions frozen"),
        Line(gauge("ledger_healthy"), "ledger written"),
    )
    moves = Line(rate("rollout_moves", "state", over="1h"), "to {{state}}")
    return (
        _of_lever("State of each lever", "none", "lever_state", "{{lever}}: {{state}}", "stat"),
        Panel(
            title="Share of its slice that meets a lever",
            unit="percentunit",
            lines=(Line(gauge("lever_share_ratio"), "{{lever}}"),),
            metrics=("lever_share_ratio",),
            top=1.0,
        ),
        _of_lever("Gates of the latest look", "none", "lever_gates", "{{lever}}: {{verdict}}"),
        Panel(
            title="Triggers that fired, per second over 10 minutes",
            unit="none",
            lines=(fired,),
            metrics=("lever_triggers_fired",),
        ),
        Panel(
            title="Moves of rollouts, per second over an hour",
            unit="none",
            lines=(moves,),
            metrics=("rollout_moves",),
        ),
        _of_lever("To verify again", "none", "lever_verification_due", "{{lever}}", "stat"),
        Panel(
            title="Frozen, and whether the ledger is written",
            unit="bool_yes_no",
            lines=flags,
            metrics=("promotions_frozen", "ledger_healthy"),
            kind="stat",
        ),
    )


def _hand_overs() -> tuple[Panel, ...]:
    ended = (Line(rate("hand_overs", "outcome, cause"), "{{outcome}} {{cause}}"),)
    return (
        Panel(
            title="Hand-overs by how they ended", unit="ops", lines=ended, metrics=("hand_overs",)
        ),
        Panel(
            title="KV that reached a replica",
            unit="Bps",
            lines=(Line(rate("hand_over_bytes", "replica"), "{{replica}}"),),
            metrics=("hand_over_bytes",),
        ),
        Panel(
            title="Part of the time that transfers take",
            unit="percentunit",
            lines=(Line(rate("hand_over_seconds", "replica"), "{{replica}}"),),
            metrics=("hand_over_seconds",),
        ),
    )


def _traffic() -> tuple[Panel, ...]:
    ended = (Line(rate("requests", "error"), "{{error}}"),)
    decided = (Line(rate("routing_decisions", "policy, reason"), "{{policy}}: {{reason}}"),)
    return (
        Panel(title="Requests by how they ended", unit="reqps", lines=ended, metrics=("requests",)),
        Panel(
            title="Requests in flight",
            unit="none",
            lines=(Line(gauge("requests_in_flight"), "in flight"),),
            metrics=("requests_in_flight",),
        ),
        Panel(
            title="Routing decisions",
            unit="ops",
            lines=decided,
            metrics=("routing_decisions",),
        ),
    )


def _latencies() -> tuple[Panel, ...]:
    return (
        _latency("Time to first token", "time_to_first_token_seconds"),
        _latency("Time per output token", "time_per_output_token_seconds"),
        _latency("End to end", "e2e_request_latency_seconds"),
        _latency("Wait before prefill", "request_queue_time_seconds"),
    )


def _tokens() -> tuple[Panel, ...]:
    reused = ratio(rate("prompt_tokens_cached", "replica"), rate("prompt_tokens", "replica"))
    accepted = ratio(
        rate("spec_decode_num_accepted_tokens", "replica"),
        rate("spec_decode_num_draft_tokens", "replica"),
    )
    lengths = tuple(
        Line(quantile(name, q), f"{said} p{q * 100:.0f}")
        for name, said in (
            ("request_prompt_tokens", "prompt"),
            ("request_generation_tokens", "output"),
        )
        for q in (0.5, 0.95)
    )
    return (
        _rates(
            "Tokens per second",
            "none",
            ("prompt_tokens", "prompt"),
            ("prompt_tokens_cached", "reused"),
            ("prompt_tokens_lost", "computed although held"),
            ("generation_tokens", "output"),
        ),
        Panel(
            title="Reused share of prompt tokens",
            unit="percentunit",
            lines=(Line(reused, "{{replica}}"),),
            metrics=("prompt_tokens_cached", "prompt_tokens"),
            top=1.0,
        ),
        Panel(
            title="Draft acceptance",
            unit="percentunit",
            lines=(Line(accepted, "{{replica}}"),),
            metrics=("spec_decode_num_accepted_tokens", "spec_decode_num_draft_tokens"),
            top=1.0,
        ),
        Panel(
            title="Tokens of a request",
            unit="none",
            lines=lengths,
            metrics=("request_prompt_tokens", "request_generation_tokens"),
        ),
    )


def _index() -> tuple[Panel, ...]:
    blocks = (
        Line(gauge("prefix_index_blocks"), "blocks"),
        Line(gauge("prefix_index_blocks_max"), "most"),
    )
    return (
        Panel(
            title="Prefix index",
            unit="none",
            lines=blocks,
            metrics=("prefix_index_blocks", "prefix_index_blocks_max"),
        ),
        _rates(
            "Blocks that the prefix index dropped for its bound, per second",
            "none",
            ("prefix_index_blocks_evicted", "dropped"),
        ),
    )


def _fleet() -> tuple[Panel, ...]:
    return (
        _by_replica("Ready", "bool_yes_no", "replica_ready"),
        _by_replica("In flight from this gateway", "none", "replica_requests_in_flight"),
        _by_replica("Running, by the engine", "none", "replica_num_requests_running"),
        _by_replica("Waiting, by the engine", "none", "replica_num_requests_waiting"),
        _by_replica("KV cache in use", "percentunit", "replica_kv_cache_usage_ratio", top=1.0),
        _by_replica("Age of the engine's reading", "s", "replica_reading_age_seconds"),
        Panel(
            title="Restarts and ejections per second over 15 minutes",
            unit="none",
            lines=(
                Line(rate("replica_restarts", "replica", over="15m"), "{{replica}} restarts"),
                Line(rate("replica_ejections", "replica", over="15m"), "{{replica}} left out"),
            ),
            metrics=("replica_restarts", "replica_ejections"),
        ),
    )


def _guard() -> tuple[Panel, ...]:
    refused = (Line(rate("requests_refused", "reason"), "{{reason}}"),)
    told = (Line(rate("verdicts_told", "sink, outcome", over="15m"), "{{sink}}: {{outcome}}"),)
    return (
        Panel(
            title="Refused before they were read",
            unit="reqps",
            lines=refused,
            metrics=("requests_refused",),
        ),
        _rates(
            "Retries and ignored salts",
            "reqps",
            ("retries", "sent again"),
            ("retries_refused", "retry refused"),
            ("cache_salts_ignored", "salt ignored"),
        ),
        Panel(title="Verdicts told to sinks", unit="none", lines=told, metrics=("verdicts_told",)),
        _rates("Records not taken", "none", ("records_failed", "not taken")),
    )


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it: it asks for its Prometheus source by a variable."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in rows():
        panels.append(_heading(row.title, top, len(panels) + 1))
        top += 1
        for at, panel in enumerate(row.panels):
            across, down = at % (WIDTH // PANEL_WIDTH), at // (WIDTH // PANEL_WIDTH)
            place = {
                "x": across * PANEL_WIDTH,
                "y": top + down * PANEL_HEIGHT,
                "w": PANEL_WIDTH,
                "h": PANEL_HEIGHT,
            }
            panels.append(_panel(panel, place, len(panels) + 1))
        top += -(-len(row.panels) // (WIDTH // PANEL_WIDTH)) * PANEL_HEIGHT
    return {
        "uid": UID,
        "title": "trimtab gateway",
        "tags": ["trimtab", "llm"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def _heading(title: str, top: int, number: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": WIDTH, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "collapsed": False,
        "gridPos": place,
        "panels": [],
    }


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.top is not None:
        defaults["max"] = panel.top
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": _description(panel.metrics),
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
        if panel.kind == "timeseries"
        else {"textMode": "value_and_name", "reduceOptions": {"calcs": ["lastNotNull"]}},
        "targets": [
            {"refId": chr(ord("A") + at), "expr": line.expr, "legendFormat": line.legend}
            | {"datasource": SOURCE}
            for at, line in enumerate(panel.lines)
        ],
    }


def _description(metrics: Sequence[str]) -> str:
    known = definitions()
    return " ".join(f"{known[name].family}: {known[name].what}" for name in metrics)
