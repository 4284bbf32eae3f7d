"""Prompts taken apart for comparison: leading system blocks, tools, messages, in the order in which they are rendered.

The order is that of the usual chat templates; a template that puts tools elsewhere moves them, not their differences.
A part is either text, token ids (one character each, so that counts are exact), or a keyed hash with a token count out
of the gateway's record: then equality is known and nothing else.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.workloads.base import WorkloadError

BYTES_PER_TOKEN: Final = 3.6
"""Bytes of prompt per token where the caller does not know better: what the gateway starts from too."""


class PartKind(StrEnum):
    """Where in a prompt a part stands."""

    SYSTEM = "system"
    TOOLS = "tools"
    USER = "user"
    REPLY = "assistant"
    OTHER = "other"
    PLAIN = "prompt"


class Tool(msgspec.Struct, frozen=True):
    """One tool: its name, its text as sent, and the same with its keys sorted."""

    name: str
    text: str
    canonical: str


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a prompt. `text` is a hash where `hashed`; `units` per token turn its characters into tokens.

    `tokens`: how many it has, estimated unless `exact`.
    """

    kind: PartKind
    text: str
    tokens: float
    exact: bool = False
    hashed: bool = False
    tools: tuple[Tool, ...] = ()

    def tokens_of(self, characters: int) -> float:
        """Return the tokens of its first so many characters."""
        if self.hashed or not self.text:
            return 0.0
        return self.tokens * self._size(characters) / self._size(len(self.text))

    def bytes_of(self, characters: int) -> int:
        """Return the bytes of its first so many characters, or of token ids their number."""
        return self._size(characters)

    def _size(self, characters: int) -> int:
        if self.exact:
            return characters
        return len(self.text[:characters].encode("utf-8", "surrogatepass"))


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the line it stands in, the session it says it belongs to (empty: none), and its parts.

    `left_out`: what else stands in the prompt and cannot be compared.
    """

    line: int
    session: str
    parts: tuple[Part, ...]
    left_out: tuple[str, ...] = ()

    @property
    def tokens(self) -> float:
        """All its tokens."""
        return sum(part.tokens for part in self.parts)

    @property
    def opening(self) -> tuple[Part, ...]:
        """Leading system blocks, tools and the first message: what requests of one application share."""
        for at, part in enumerate(self.parts):
            if part.kind not in (PartKind.SYSTEM, PartKind.TOOLS):
                return self.parts[: at + 1]
        return self.parts


_KINDS: Final = {kind.value: kind for kind in PartKind}


def text_parts(
    segments: Sequence[tuple[str, str]], *, bytes_per_token: float = BYTES_PER_TOKEN
) -> tuple[Part, ...]:
    """Return parts of (kind, text) segments as the wire format gives them; raises ValueError on a ratio of 0."""
    if bytes_per_token <= 0:
        raise ValueError(f"bytes per token must be above 0, got {bytes_per_token}")
    return tuple(_text_part(kind, text, bytes_per_token) for kind, text in segments)


def _text_part(kind: str, text: str, bytes_per_token: float) -> Part:
    if kind == "prompt_ids":
        try:
            ids = "".join(chr(int(word)) for word in text.split())
        except (ValueError, OverflowError) as error:
            raise WorkloadError("token ids must be whole numbers from 0 to 1,114,111") from error
        return Part(kind=PartKind.PLAIN, text=ids, tokens=float(len(ids)), exact=True)
    tokens = len(text.encode("utf-8", "surrogatepass")) / bytes_per_token
    tools = _tools(text) if kind == PartKind.TOOLS else ()
    return Part(kind=_KINDS.get(kind, PartKind.OTHER), text=text, tokens=tokens, tools=tools)


def hashed_part(kind: str, digest: str, tokens: int) -> Part:
    """Return the part that a record's segment is."""
    return Part(
        kind=_KINDS.get(kind, PartKind.OTHER), text=digest, tokens=float(tokens), hashed=True
    )


def _tools(text: str) -> tuple[Tool, ...]:
    """Tell a list of tools apart; one of another shape is no list of tools but still a text."""
    try:
        listed = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return ()
    if not isinstance(listed, list):
        return ()
    return tuple(
        Tool(
            name=_tool_name(tool),
            text=msgspec.json.encode(tool).decode(),
            canonical=msgspec.json.encode(tool, order="deterministic").decode(),
        )
        for tool in listed
    )


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function")
    named = inner.get("name") if isinstance(inner, dict) else tool.get("name")
    return named if isinstance(named, str) else ""
