"""What is told to the outside: the access log, traces and verdicts, as far as they are configured."""

from collections.abc import Callable

from trimtab.core.config import TelemetryConfig
from trimtab.core.ports import Clock
from trimtab.runtime.access_log import AccessLog
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.otel import Tracing
from trimtab.runtime.rollout_metrics import RolloutCollector
from trimtab.runtime.sinks import VerdictSinks
from trimtab.runtime.watch import RequestWatch, Watches


class Telemetry:
    """Makes what a configuration asks for; raises `ConfigError` or `SecretError` for what cannot be had."""

    def __init__(
        self,
        config: TelemetryConfig,
        served: Callable[[], tuple[str, str]],
        clock: Clock,
        run_id: str,
    ) -> None:
        self.verdicts = VerdictSinks(config, clock, run_id)
        self.log = AccessLog(config.access_log) if config.access_log else None
        try:
            self.tracing = Tracing(config, served) if config.otlp_endpoint else None
        except BaseException:
            if self.log is not None:
                self.log.close()
            raise

    @property
    def watch(self) -> RequestWatch | None:
        """What hears of requests, None where nobody wants to."""
        watches = [each for each in (self.log, self.tracing) if each is not None]
        return Watches(watches) if watches else None

    def hear(self, ledger: SqliteLedger, rollouts: RolloutCollector) -> None:
        """Let the metrics of rollouts and the sinks hear what goes into the ledger."""
        rollouts.ledger_healthy = lambda: ledger.healthy
        rollouts.told = self.verdicts.counts
        ledger.hears = (rollouts.heard, self.verdicts.heard)

    def reopen(self) -> None:
        """Let go of a log that was moved away."""
        self.verdicts.reopen()
        if self.log is not None:
            self.log.reopen()

    async def close(self) -> None:
        """Write and send what waits."""
        await self.verdicts.close()
        if self.log is not None:
            self.log.close()
        if self.tracing is not None:
            self.tracing.close()
