"""Asks a judge at a URL what an answer is worth.

The request is a POST of JSON: `id`, `kind`, `prompt` or `messages`, `answer`, `rubric`. The answer is JSON with
`score`, from 0 to 1. The judge sees the prompts and the answers of the eval file, and nothing else.
"""

from typing import Annotated, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Meta

from trimtab.quality.eval_checks import JudgeCheck
from trimtab.quality.evals import EvalItem
from trimtab.runtime.asked_arm import ArmError

TIMEOUT_S: Final = 120.0
BODY_BYTES_MAX: Final = 1024 * 1024


class JudgeError(ArmError):
    """A judge did not answer as it must; the message names the item and how."""


class _Score(msgspec.Struct):
    score: Annotated[float, Meta(ge=0.0, le=1.0)]


async def agrees(
    session: aiohttp.ClientSession, check: JudgeCheck, item: EvalItem, answer: str
) -> bool:
    """Whether the judge's score reaches the check's least one; raises `JudgeError`."""
    asked = {
        "id": item.id,
        "kind": item.kind,
        "prompt": item.prompt,
        "messages": item.messages,
        "answer": answer,
        "rubric": check.rubric,
    }
    where = f"eval item {item.id}: the judge at {_place(check.url)}"
    try:
        async with session.post(
            check.url,
            data=msgspec.json.encode(asked),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            body, status = await _bounded(response), response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise JudgeError(f"{where} did not answer: {type(error).__name__}") from error
    if status != 200:
        raise JudgeError(f"{where} answered with status {status}")
    try:
        return msgspec.json.decode(body, type=_Score).score >= check.score_min
    except msgspec.MsgspecError as error:
        raise JudgeError(f"{where} gave no `score` from 0 to 1: {error}") from error


def _place(url: str) -> str:
    """Return scheme, host and path of an address: who asks and with which key stays out of messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that is none"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = b""
    async for part in response.content.iter_any():
        body += part
        if len(body) > BODY_BYTES_MAX:
            break
    return body
