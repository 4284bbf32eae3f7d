"""A running server that a measurement asks: one way to post, one error that names the arm."""

from collections.abc import Callable
from typing import Final, TypeVar

import aiohttp

from trimtab.core.ports import EngineFormatError

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 300.0
REQUEST_TIMEOUT: Final = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
JSON_HEADERS: Final = {"content-type": "application/json"}


class ArmError(RuntimeError):
    """An arm did not answer as it must; the message says which arm and how."""


class AskedArm:
    """One server under an address. `name`: for messages."""

    def __init__(self, name: str, url: str, session: aiohttp.ClientSession) -> None:
        self.name = name
        self.url = url
        self._session = session

    async def _post(self, path: str, body: bytes) -> bytes:
        try:
            async with self._session.post(
                self.url + path, data=body, headers=JSON_HEADERS, timeout=REQUEST_TIMEOUT
            ) as response:
                data = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ArmError(f"{self.name} did not answer {path}: {type(error).__name__}") from error
        if status != 200:
            raise ArmError(f"{self.name} answered {path} with status {status}")
        return data

    def _read(self, body: bytes, reader: Callable[[bytes], T]) -> T:
        try:
            return reader(body)
        except EngineFormatError as error:
            raise ArmError(f"{self.name}: {error}") from error
