"""Output equality at temperature 0, measured on the side: finished requests are asked again.

A request that the baseline answered in its traffic is sent again twice, straight to replicas: once the way the
candidate would serve it, once the way the baseline would. Both answers are compared with the first one. How often
the baseline's own second answer differs is the noise floor (batching and caching change the order of sums); only
differences beyond it speak against the candidate. Bodies and texts are held in memory until the probe is done and
are never stored.
"""

from collections import deque
from collections.abc import Callable

import aiohttp
import msgspec

from trimtab.core.ports import EngineFormat, EngineFormatError
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm

WAITING_MAX = 8
PROBE_TIMEOUT_S = 60.0


class EqualityCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many probes differed: candidate against baseline, and baseline against itself."""

    n: int = 0
    candidate_differs: int = 0
    floor_differs: int = 0
    failed: int = 0


class EqualityProbe:
    """Asks a few finished temperature-0 requests again while a lever is being proven."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        engine_format: EngineFormat,
        digest: Callable[[bytes], str],
    ) -> None:
        self._session = session
        self._digest = digest
        self._format = engine_format
        self._waiting: deque[tuple[RequestRecord, str, bytes]] = deque(maxlen=WAITING_MAX)
        self.counts = EqualityCounts()

    def reset(self) -> None:
        """Start counting for another lever."""
        self._waiting.clear()
        self.counts = EqualityCounts()

    def offer(self, record: RequestRecord, path: str, body: bytes) -> None:
        """Offer a finished request; only complete baseline answers at temperature 0 are kept, the newest few."""
        known = record.replica is not None and record.output_hash is not None
        if record.ok and record.temperature == 0 and record.arm is Arm.BASELINE and known:
            self._waiting.append((record, path, body))

    async def run_once(
        self,
        candidate_url: Callable[[RequestRecord], str | None],
        baseline_url: Callable[[RequestRecord], str | None],
    ) -> bool:
        """Probe the cheapest waiting request; returns False when none waits or no replica is free for it."""
        if not self._waiting:
            return False
        # The shortest prompt costs the least: the baseline's replica may have to compute all of it.
        cheapest = min(self._waiting, key=lambda waiting: waiting[0].tokens.prompt or 0)
        self._waiting.clear()
        record, path, body = cheapest
        urls = candidate_url(record), baseline_url(record)
        if urls[0] is None or urls[1] is None:
            return False
        whole = _whole(body)
        # One after the other, so that the two do not share a batch.
        again = await self._ask(urls[1] + path, whole)
        candidate = await self._ask(urls[0] + path, whole)
        self.counts = _count(self.counts, record.output_hash, again, candidate)
        return True

    async def _ask(self, url: str, body: bytes) -> str | None:
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        try:
            async with self._session.post(
                url, data=body, headers=headers, timeout=timeout
            ) as response:
                data = await response.read()
                text = self._format.read_response(data).text if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, EngineFormatError):
            return None
        return None if text is None else self._digest(text.encode("utf-8", "surrogatepass"))


def _whole(body: bytes) -> bytes:
    fields = msgspec.json.decode(body)
    fields.pop("stream_options", None)
    fields["stream"] = False
    return msgspec.json.encode(fields)


def _count(
    counts: EqualityCounts, first: str | None, again: str | None, candidate: str | None
) -> EqualityCounts:
    if first is None or again is None or candidate is None:
        return msgspec.structs.replace(counts, failed=counts.failed + 1)
    return msgspec.structs.replace(
        counts,
        n=counts.n + 1,
        candidate_differs=counts.candidate_differs + (candidate != first),
        floor_differs=counts.floor_differs + (again != first),
    )
