"""What a running vLLM server is asked over its developer endpoints: which layers run how, and other weights, please."""

from pathlib import Path
from typing import Final

import aiohttp

from trimtab.core.ports import EngineFormatError, LaunchError
from trimtab.engines.vllm_inspection import (
    INSPECT_BODY,
    RESET_CACHE_PATH,
    RPC_PATH,
    read_inspection,
    reload_body,
)

_TIMEOUT_S: Final = 300.0


class VllmInside:
    """One server that was started with its developer endpoints."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def layers(self) -> dict[str, dict[str, int]]:
        """Return how many layers of each group run in which scheme; raises `LaunchError`."""
        try:
            return read_inspection(await self._post(RPC_PATH, INSPECT_BODY))
        except EngineFormatError as error:
            raise LaunchError(f"{self._url}: {error}") from error

    async def load(self, folder: Path) -> None:
        """Load weights of the same shapes and types in place; KV of the old ones is forgotten.

        `folder`: whole, not relative. Raises `LaunchError`.
        """
        await self._post(RPC_PATH, reload_body(str(folder)))
        await self._post(RESET_CACHE_PATH, b"")

    async def _post(self, path: str, body: bytes) -> bytes:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        try:
            async with self._session.post(
                self._url + path, data=body, headers=headers, timeout=timeout
            ) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LaunchError(
                f"{self._url}{path} did not answer: {type(error).__name__}"
            ) from error
        if response.status != 200:
            raise LaunchError(f"{self._url}{path} answered with status {response.status}")
        return data
