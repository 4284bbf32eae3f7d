"""Recorded request bodies as arrivals: what they ask by length, what they share by the hashes of their text.

A body has no token counts, so its prompt's are estimated from its text as the load generator estimates them, and its
answer is taken to be as long as it asks for at most. Blocks are cut from the text at the mean bytes of the estimate's
tokens, each hashed over all before it, so prompts share blocks exactly as far as their texts agree.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trimtab.core.prefix import BlockHasher
from trimtab.sim.arrivals import Arrival
from trimtab.workloads.base import (
    TEMPLATE_TOKENS_PER_MESSAGE,
    Workload,
    WorkloadError,
    estimate_tokens,
)

BYTES_PER_TOKEN: Final = 4
_KEY: Final = b"simulated prompts"


def from_bodies(
    workload: Workload, *, block_tokens: int, file: str, lines: Sequence[int]
) -> list[Arrival]:
    """Return the requests of a workload of OpenAI bodies in order of time. `lines`: the line of each in its file.

    Raises `WorkloadError` with line and field for a body that does not say how long its answer may be.
    """
    hasher = BlockHasher(_KEY, block_tokens * BYTES_PER_TOKEN)
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    made = []
    for planned, line in zip(workload.requests, lines, strict=True):
        body = decode(planned.body)
        texts = _texts(body)
        tokens = sum(estimate_tokens(text) + TEMPLATE_TOKENS_PER_MESSAGE for text in texts)
        made.append(
            Arrival(
                at_s=planned.send_at_s,
                session=planned.session,
                input_tokens=tokens,
                output_tokens=_output(body, file, line),
                hashes=hasher.blocks("\0".join(texts).encode())[: tokens // block_tokens],
                label=planned.label,
            )
        )
    return sorted(made, key=lambda one: one.at_s)


def _texts(body: dict[str, Any]) -> list[str]:
    """Return the parts of a prompt; parts that are no text count as their JSON."""
    if "messages" not in body:
        return [_text(body["prompt"])]
    tools = [_text(body["tools"])] if body.get("tools") else []
    messages = [one if isinstance(one, dict) else {"content": one} for one in body["messages"]]
    return tools + [f"{one.get('role', '')}\n{_text(one.get('content'))}" for one in messages]


def _text(content: object) -> str:
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


def _output(body: dict[str, Any], file: str, line: int) -> int:
    for field in ("max_completion_tokens", "max_tokens"):
        value = body.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    raise WorkloadError(
        f"{file}, line {line}, max_tokens: no number of at least 1; a simulation takes the answer to be that long"
    )
