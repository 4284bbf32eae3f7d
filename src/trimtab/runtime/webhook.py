"""Posts texts to one address, one after the other, and gives up in bounds: an address that is dead delays nobody.

Law: at most `WAITING_MAX` wait, the oldest goes first where more come; each is tried `TRIES_MAX` times with doubling
waits; an answer 2xx delivers, another 4xx than 408 and 429 refuses at once, everything else is tried again. While the
address was not reached at last, each is tried once, so that what waits is not old news when it is reached again.

Failure mode: what was delivered and not answered in time is sent again; its id in the header tells that it is the same.
"""

import asyncio
import contextlib
import hashlib
import hmac
from collections import Counter, deque
from typing import Final

import aiohttp

from trimtab import __version__

WAITING_MAX: Final = 256
TRIES_MAX: Final = 5
TIMEOUT_S: Final = 5.0
WAIT_S_MIN: Final = 0.5
CLOSE_S: Final = 2.0
"""How long a stop waits for what is still to be sent."""

DELIVERED, REFUSED, FAILED, DROPPED = "delivered", "refused", "failed", "dropped"
"""What becomes of a text. Failed: not within its tries; dropped: it never was its turn."""

ID_HEADER: Final = "X-Trimtab-Event"
SIGNATURE_HEADER: Final = "X-Trimtab-Signature"
_TRY_AGAIN: Final = frozenset({408, 429})


class Webhook:
    """One address. `start` once the loop runs; `secret` empty: bodies are not signed."""

    def __init__(self, url: str, secret: str = "", *, wait_s_min: float = WAIT_S_MIN) -> None:
        self._url = url
        self._secret = secret.encode()
        self._wait_s_min = wait_s_min
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._more = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._is_down = False
        self._sending = 0
        self.counts: Counter[str] = Counter({DELIVERED: 0, REFUSED: 0, FAILED: 0, DROPPED: 0})

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run())

    def offer(self, event_id: str, body: bytes) -> None:
        """Take a body of JSON to send; never waits."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.counts[DROPPED] += 1
        self._waiting.append((event_id, body))
        self._idle.clear()
        self._more.set()

    async def close(self) -> None:
        """Send what waits for at most `CLOSE_S`, then drop it."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), CLOSE_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.counts[DROPPED] += len(self._waiting) + self._sending
        self._waiting.clear()

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while True:
                await self._more.wait()
                while self._waiting:
                    event_id, body = self._waiting.popleft()
                    self._sending = 1
                    outcome = await self._deliver(client, event_id, body)
                    self._sending = 0
                    self.counts[outcome] += 1
                    self._is_down = outcome == FAILED
                self._more.clear()
                self._idle.set()

    async def _deliver(self, client: aiohttp.ClientSession, event_id: str, body: bytes) -> str:
        wait_s = self._wait_s_min
        tries = 1 if self._is_down else TRIES_MAX
        for left in reversed(range(tries)):
            status = await self._post(client, event_id, body)
            if status is not None and 200 <= status < 300:
                return DELIVERED
            if status is not None and 400 <= status < 500 and status not in _TRY_AGAIN:
                return REFUSED
            if left:
                await asyncio.sleep(wait_s)
                wait_s *= 2.0
        return FAILED

    async def _post(self, client: aiohttp.ClientSession, event_id: str, body: bytes) -> int | None:
        """Return the status, None where there was none. The answer's body is not read."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"trimtab/{__version__}",
            ID_HEADER: event_id,
        }
        if self._secret:
            digest = hmac.new(self._secret, body, hashlib.sha256).hexdigest()
            headers[SIGNATURE_HEADER] = f"sha256={digest}"
        try:
            async with client.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
