"""Tells verdicts to the outside: a log of JSON lines and a webhook, as far as they are configured.

Told are moves of rollouts, verdicts of gates where one of them changed, triggers, what is to be verified again, and
freezes: never a request, so no word of a prompt can be among them. Whatever a sink does, nobody waits for it: what
cannot be told is counted.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from trimtab.core.config import TelemetryConfig
from trimtab.core.events import (
    AnyEvent,
    CutsKept,
    Frozen,
    GatesEvaluated,
    LeverProposed,
    QualityScored,
    RolloutMoved,
    TriggerMoved,
    VerificationDue,
    kind_of,
    lever_of,
)
from trimtab.core.narrate import tell_event
from trimtab.core.ports import Clock
from trimtab.core.types import RolloutState, Verdict
from trimtab.runtime.line_log import LineLog
from trimtab.runtime.secret_refs import resolve_secret
from trimtab.runtime.webhook import DROPPED, Webhook

LINES_WAITING_MAX: Final = 1_000
LEVERS_MAX: Final = 200
"""Levers whose last verdicts are remembered, so that only changes are told."""

_ENCODER: Final = msgspec.json.Encoder()


class GateTold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gate of a look. `value`: candidate over baseline, or the difference of rates; absent: unknown."""

    gate: str
    metric: str
    cut: str
    verdict: Verdict
    n_baseline: int
    n_candidate: int
    value: float | None = None
    low: float | None = None
    high: float | None = None


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a sink is told: one event of the ledger by `id`, in words and in values; what is absent does not apply."""

    id: str
    time: str
    run: str
    kind: str
    text: str
    lever: str | None = None
    before: RolloutState | None = None
    after: RolloutState | None = None
    share: float | None = None
    verdict: Verdict | None = None
    reason: str = ""
    trigger: str = ""
    fired: bool | None = None
    gates: tuple[GateTold, ...] = ()


class VerdictSinks:
    """Hears every event of the ledger and tells the sinks those that are news.

    Raises `ConfigError` for a log that cannot be opened and `SecretError` for a secret that is not there. `start` once
    the loop runs, `close` in the end.
    """

    def __init__(self, config: TelemetryConfig, clock: Clock, run_id: str) -> None:
        self._clock = clock
        self._run_id = run_id
        self._verdicts: dict[str, tuple[tuple[str, Verdict], ...]] = {}
        self._webhook: Webhook | None = None
        if config.verdict_webhook:
            reference, address = config.verdict_webhook_secret, config.verdict_webhook
            secret = resolve_secret(reference) if reference else ""
            plain = address.startswith(("http://", "https://"))
            self._webhook = Webhook(address if plain else resolve_secret(address), secret)
        self._log: LineLog | None = None
        self._logged = 0
        if config.verdict_log:
            self._log = LineLog(
                config.verdict_log, key="telemetry.verdict_log", waiting_max=LINES_WAITING_MAX
            )

    @property
    def wants(self) -> bool:
        """Whether anybody is told."""
        return self._log is not None or self._webhook is not None

    def start(self) -> None:
        """Begin to send."""
        if self._webhook is not None:
            self._webhook.start()

    def heard(self, event_id: str, event: AnyEvent) -> None:
        """Tell an event if it is news; returns at once and never raises."""
        if not self.wants or not self._is_news(event):
            return
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC).isoformat(timespec="milliseconds")
        body = _ENCODER.encode(told_of(event, event_id=event_id, time=now, run=self._run_id))
        if self._log is not None:
            self._logged += 1
            self._log.put(body + b"\n")
        if self._webhook is not None:
            self._webhook.offer(event_id, body)

    def _is_news(self, event: AnyEvent) -> bool:
        match event:
            case GatesEvaluated():
                verdicts = tuple((result.gate, result.verdict) for result in event.results)
                before = self._verdicts.pop(event.lever, None)
                self._verdicts[event.lever] = verdicts
                if len(self._verdicts) > LEVERS_MAX:
                    del self._verdicts[next(iter(self._verdicts))]
                return verdicts != before
            case LeverProposed() | RolloutMoved() | TriggerMoved() | VerificationDue():
                return True
            case CutsKept() | QualityScored() | Frozen():
                return True
            case _:
                return False

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how much was told, by sink and outcome."""
        found: Counter[tuple[str, str]] = Counter()
        if self._log is not None:
            found["log", "delivered"] = self._logged - self._log.lost
            found["log", DROPPED] = self._log.lost
        if self._webhook is not None:
            found.update({("webhook", name): n for name, n in self._webhook.counts.items()})
        return found

    def reopen(self) -> None:
        """Let go of a log that was moved away."""
        if self._log is not None:
            self._log.reopen()

    async def close(self) -> None:
        """Tell what waits, for a bounded time, and end."""
        if self._webhook is not None:
            await self._webhook.close()
        if self._log is not None:
            self._log.close()


def told_of(event: AnyEvent, *, event_id: str, time: str, run: str) -> Told:
    """Return what sinks are told of an event."""
    told = Told(
        id=event_id,
        time=time,
        run=run,
        kind=kind_of(event),
        text=tell_event(event),
        lever=lever_of(event),
    )
    match event:
        case RolloutMoved():
            return msgspec.structs.replace(
                told,
                before=event.before,
                after=event.after,
                share=event.share,
                verdict=event.verdict,
                reason=event.reason,
            )
        case GatesEvaluated():
            gates = tuple(
                GateTold(
                    gate=result.gate,
                    metric=result.metric.value,
                    cut=result.cut,
                    verdict=result.verdict,
                    n_baseline=result.n_baseline,
                    n_candidate=result.n_candidate,
                    value=result.value,
                    low=None if result.interval is None else result.interval.low,
                    high=None if result.interval is None else result.interval.high,
                )
                for result in event.results
            )
            return msgspec.structs.replace(
                told, share=event.share, verdict=event.verdict, gates=gates
            )
        case TriggerMoved():
            return msgspec.structs.replace(
                told, trigger=event.trigger.name, fired=event.fired, reason=event.action
            )
        case Frozen():
            return msgspec.structs.replace(told, reason=event.reason)
        case _:
            return told


Hear = Callable[[str, AnyEvent], None]
"""(id, event): hears what was appended to a ledger; it returns at once and does not raise."""
