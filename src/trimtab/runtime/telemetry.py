"""What is told to the outside of each request: the access log and traces, as far as they are configured."""

from collections.abc import Callable

from trimtab.core.config import TelemetryConfig
from trimtab.runtime.access_log import AccessLog
from trimtab.runtime.otel import Tracing
from trimtab.runtime.watch import RequestWatch, Watches


class Telemetry:
    """Makes the watches that a configuration asks for; raises `ConfigError` for one that cannot be had."""

    def __init__(self, config: TelemetryConfig, served: Callable[[], tuple[str, str]]) -> None:
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

    def reopen(self) -> None:
        """Let go of a log that was moved away."""
        if self.log is not None:
            self.log.reopen()

    def close(self) -> None:
        """Write and send what waits."""
        if self.log is not None:
            self.log.close()
        if self.tracing is not None:
            self.tracing.close()
