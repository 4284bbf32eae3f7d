"""What the gateway works out of a prompt before it is served: bytes, session, repetition.

No function keeps the text it was given.
"""

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from trimtab.core.cuts import header_mark, header_names
from trimtab.core.ports import RequestFacts
from trimtab.core.prefix_key import PrefixScope
from trimtab.core.record import Segment
from trimtab.core.traffic import TrafficPlan
from trimtab.policies.estimates import TokenRatio
from trimtab.policies.route_query import asks_cuts
from trimtab.runtime.secret import Secret
from trimtab.runtime.wire import Headers

SHINGLE_BYTES: Final = 32
SHINGLE_PROMPT_BYTES_MAX: Final = 64 * 1024
SHINGLE_SAMPLE_SHIFT: Final = 30  # keeps hashes below 2^30: one in four, chosen by content
SHINGLE_SAMPLE_MIN: Final = 16  # at least one in 16, else the sample says nothing
SESSION_BYTES: Final = 256
LABEL_CHARS_MAX: Final = 64

_BASE: Final = 0x9E3779B1  # odd, so that it has an inverse modulo 2^32


def _powers(base: int) -> NDArray[np.uint32]:
    """Return base^0, base^1, ... modulo 2^32 for the longest prompt that is looked at."""
    powers = np.full(SHINGLE_PROMPT_BYTES_MAX, base, dtype=np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_CHOSEN_BELOW: Final = np.uint32(1 << SHINGLE_SAMPLE_SHIFT)
_POWERS: Final = _powers(_BASE)
_INVERSES: Final = _powers(pow(_BASE, -1, 1 << 32))


class Part(msgspec.Struct, frozen=True):
    """One part of a prompt: its kind, the keyed hash of its text, and how many bytes that has."""

    kind: str
    hash: str
    size: int


class PromptText(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt while it is looked at: its bytes, and its parts, each of which was hashed once."""

    data: bytes
    parts: tuple[Part, ...]


def read_prompt(segments: tuple[tuple[str, str], ...], secret: Secret) -> PromptText:
    """Return a prompt as one run of bytes and as its hashed parts.

    Equal leading segments give equal leading bytes.
    """
    texts = [text.encode("utf-8", "surrogatepass") for _, text in segments]
    data = b"".join(
        b"\x1e%b\x1f%b" % (kind.encode("utf-8", "surrogatepass"), text)
        for (kind, _), text in zip(segments, texts, strict=True)
    )
    parts = tuple(
        Part(kind, secret.digest(text), len(text))
        for (kind, _), text in zip(segments, texts, strict=True)
    )
    return PromptText(data=data, parts=parts)


def scope_of(facts: RequestFacts, models: tuple[str, ...], salt: str | None) -> PrefixScope:
    """Return what beside its text makes a request's prefix key.

    A model that is not the fleet's first one is taken for an adapter of it: two of them never share cache. `salt`: the
    caller's, where it is authenticated; else the body's own counts.
    """
    adapter = "" if facts.model in models[:1] else facts.model or ""
    return PrefixScope(adapter=adapter, salt=salt or facts.cache_salt or "")


def session_of(named: str | None, prompt: PromptText, secret: Secret, *, salt: str = "") -> str:
    """Return the keyed hash of a request's session.

    The session is what the client names (in its header, else in `user`), else the prompt up to and including
    the first user message (the first 256 bytes of a plain prompt): later turns resend exactly that. Under two salts
    it is two sessions.
    """
    own = salt.encode("utf-8", "surrogatepass") + b"\x00" if salt else b""
    if named:
        return secret.digest(own + b"named\x00" + named.encode("utf-8", "surrogatepass"))
    kinds = [part.kind for part in prompt.parts]
    if "user" in kinds:
        head = _parts_as_bytes(prompt.parts[: kinds.index("user") + 1])
    else:
        head = prompt.data[:SESSION_BYTES]
    return secret.digest(own + b"head\x00" + head)


def hash_of(prompt: PromptText, secret: Secret) -> str:
    """Return the keyed hash of a whole prompt: equal for equal parts in the same order."""
    return secret.digest(_parts_as_bytes(prompt.parts))


def _parts_as_bytes(parts: tuple[Part, ...]) -> bytes:
    return "".join(f"\x1e{part.kind}\x1f{part.hash}" for part in parts).encode(
        "utf-8", "surrogatepass"
    )


def label_of(said: str | None) -> str | None:
    """Return the label that a client gives its request, None for none: short, and text whatever bytes were sent.

    What is no text could not be written to the ledger.
    """
    if not said:
        return None
    return said[:LABEL_CHARS_MAX].encode("utf-8", "replace").decode()


def marks_of(headers: Headers, plan: TrafficPlan, secret: Secret) -> tuple[str, ...]:
    """Return the headers that the plan's cuts ask about, values hashed; of a request without them nothing."""
    if not asks_cuts(plan):
        return ()
    names = sorted(header_names(plan.all_cuts()))
    values = ((name, headers.get(name)) for name in names)
    return tuple(header_mark(name, value, secret.digest) for name, value in values if value)


def repetition_of(prompt: bytes) -> float | None:
    """Return how repetitive a prompt is: the share of its 32-byte shingles seen before in it, 0 to 1.

    Shingles start at every byte; a quarter of them, chosen by their hash (so that equal shingles are chosen
    alike), is counted. Looks at the last 64 KiB. None for a prompt without any shingle. A polynomial hash
    modulo 2^32 over running sums: the window's sum divided by the power of its position.
    """
    data = np.frombuffer(prompt[-SHINGLE_PROMPT_BYTES_MAX:], dtype=np.uint8).astype(np.uint32)
    count = data.size - SHINGLE_BYTES + 1
    if count < 1:
        return None
    data *= _POWERS[: data.size]
    sums = np.zeros(data.size + 1, dtype=np.uint32)
    np.add.accumulate(data, out=sums[1:])
    hashes = sums[SHINGLE_BYTES:] - sums[:count]
    hashes *= _INVERSES[:count]
    # Sorting all and cutting is quicker than choosing, for which a core would have to guess a bit for each byte.
    hashes.sort()
    size = int(hashes.searchsorted(_CHOSEN_BELOW))
    # Few distinct shingles, and by chance the frequent ones were not chosen: count them all.
    chosen = hashes if size * SHINGLE_SAMPLE_MIN < count else hashes[:size]
    distinct = 1 + int(np.count_nonzero(chosen[1:] != chosen[:-1]))
    return 1.0 - float(distinct) / float(chosen.size)


def segments_of(parts: tuple[Part, ...], ratio: TokenRatio) -> tuple[Segment, ...]:
    """Return each part of a prompt as a keyed hash and an estimated token count."""
    return tuple(
        Segment(kind=part.kind, hash=part.hash, tokens=ratio.tokens(part.size)) for part in parts
    )
