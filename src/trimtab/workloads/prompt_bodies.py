"""What of a request's body stands in its prompt, put where the reader of chat messages looks for it.

Some bodies have their system text beside the messages and calls of tools inside them; both become text to compare.
What cannot be compared as text (images, audio, fields that only a chat template knows) is named and left out, so that
nobody takes what was not looked at for equal.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

TEMPLATE_FIELDS: Final = ("functions", "documents", "chat_template_kwargs")
"""Fields that templates write into prompts in ways of their own."""

_MEDIA: Final = ("image", "audio", "video", "file", "document")

Body = Mapping[str, Any]


def comparable(body: Body) -> tuple[Body, tuple[str, ...]]:
    """Return the body with all of its text in its messages, and the names of what was left out."""
    messages = body.get("messages")
    left_out = [name for name in TEMPLATE_FIELDS if body.get(name)]
    if not isinstance(messages, list):
        return body, tuple(left_out)
    made = [*_system(body.get("system"))]
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            made.append(message)
            continue
        left_out += [kind for part in content if (kind := _media_of(part))]
        parts = [_as_text(part) for part in content if not _media_of(part)]
        made.append({**message, "content": parts})
    return {**body, "messages": made}, tuple(dict.fromkeys(left_out))


def _system(system: object) -> Iterator[Body]:
    """Yield a system message for each block of a system text that stands beside the messages."""
    if isinstance(system, str):
        yield {"role": "system", "content": system}
    elif isinstance(system, list):
        yield from ({"role": "system", "content": [_as_text(block)]} for block in system)


def _media_of(part: object) -> str:
    """Return the kind of a part that is no text, "" for text."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        return ""
    return kind if any(word in kind for word in _MEDIA) else ""


def _as_text(part: object) -> object:
    """Return a part as text; what an assistant called, and what came back, is text as it was sent."""
    if isinstance(part, dict) and not isinstance(part.get("text"), str):
        return {"type": "text", "text": msgspec.json.encode(part).decode()}
    return part
