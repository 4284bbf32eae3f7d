"""Asks a running gateway for something that is the operator's, with the admin token where there is one."""

import os
from typing import TypeVar

import aiohttp
import msgspec

from trimtab.interfaces.up_cli import ADMIN_TOKEN
from trimtab.runtime.served_sources import SourceError

T = TypeVar("T")


class _Error(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Error


async def ask_gateway(url: str, path: str, body: bytes, kind: type[T], *, wait_s: float) -> T:
    """Post a body to a gateway and return its answer; raises `SourceError` with what the gateway says."""
    token = os.environ.get(ADMIN_TOKEN)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    timeout = aiohttp.ClientTimeout(total=wait_s)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(url.rstrip("/") + path, data=body, headers=headers) as response,
        ):
            return _read(await response.read(), response.status, url, kind)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise SourceError(f"{url} does not answer: {error!r}") from error


def _read(body: bytes, status: int, url: str, kind: type[T]) -> T:
    try:
        if status == 200:
            return msgspec.json.decode(body, type=kind)
        said = msgspec.json.decode(body, type=_Refused).error.message
    except msgspec.MsgspecError as error:
        raise SourceError(f"{url} is no gateway of a fleet (status {status})") from error
    raise SourceError(said)
