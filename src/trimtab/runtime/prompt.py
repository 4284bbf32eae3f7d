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
from trimtab.runtime.secret import Secret
from trimtab.runtime.wire import Headers

SHINGLE_BYTES: Final = 32
SHINGLE_PROMPT_BYTES_MAX: Final = 64 * 1024
SHINGLE_SAMPLE_SHIFT: Final = 62  # keeps hashes below 2^62: one in four, chosen by content
SHINGLE_SAMPLE_MIN: Final = 16  # at least one in 16, else the sample says nothing
SESSION_BYTES: Final = 256

_BASE: Final = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64


def _powers(base: int) -> NDArray[np.uint64]:
    """Return base^0, base^1, ... modulo 2^64 for the longest prompt that is looked at."""
    powers = np.full(SHINGLE_PROMPT_BYTES_MAX, base, dtype=np.uint64)
    powers[0] = 1
    return np.multiply.accumulate(powers)


_ONE: Final = np.uint64(1)
_CHOSEN_BELOW: Final = np.uint64(1 << SHINGLE_SAMPLE_SHIFT)
_POWERS: Final = _powers(_BASE)
_INVERSES: Final = _powers(pow(_BASE, -1, 1 << 64))


class _User(msgspec.Struct):
    user: str | None = None


_USER = msgspec.json.Decoder(_User)


def scope_of(facts: RequestFacts, models: tuple[str, ...], salt: str | None) -> PrefixScope:
    """Return what beside its text makes a request's prefix key.

    A model that is not the fleet's first one is taken for an adapter of it: two of them never share cache. `salt`: the
    caller's, where it is authenticated; else the body's own counts.
    """
    adapter = "" if facts.model in models[:1] else facts.model or ""
    return PrefixScope(adapter=adapter, salt=salt or facts.cache_salt or "")


def prompt_bytes(segments: tuple[tuple[str, str], ...]) -> bytes:
    """Return the prompt as one run of bytes: equal leading segments give equal leading bytes."""
    return b"".join(
        f"\x1e{kind}\x1f{text}".encode("utf-8", "surrogatepass") for kind, text in segments
    )


def session_of(
    header: str | None, body: bytes, facts: RequestFacts, secret: Secret, *, salt: str = ""
) -> str:
    """Return the keyed hash of a request's session.

    The session is what the client names in its header, else in `user`, else the prompt up to and including
    the first user message (the first 256 bytes of a plain prompt): later turns resend exactly that. Under two salts
    it is two sessions.
    """
    own = salt.encode("utf-8", "surrogatepass") + b"\x00" if salt else b""
    named = header or user_of(body)
    if named:
        return secret.digest(own + b"named\x00" + named.encode("utf-8", "surrogatepass"))
    kinds = [kind for kind, _ in facts.segments]
    if "user" in kinds:
        head = prompt_bytes(facts.segments[: kinds.index("user") + 1])
    else:
        head = prompt_bytes(facts.segments)[:SESSION_BYTES]
    return secret.digest(own + b"head\x00" + head)


def marks_of(headers: Headers, plan: TrafficPlan, secret: Secret) -> tuple[str, ...]:
    """Return the headers that the plan's cuts ask about, values hashed; of a request without them nothing."""
    names = sorted(header_names(plan.all_cuts()))
    values = ((name, headers.get(name)) for name in names)
    return tuple(header_mark(name, value, secret.digest) for name, value in values if value)


def user_of(body: bytes) -> str | None:
    """Return the `user` field of a JSON body, None where there is none that is a string."""
    try:
        return _USER.decode(body).user
    except msgspec.MsgspecError:
        return None


def repetition_of(prompt: bytes) -> float | None:
    """Return how repetitive a prompt is: the share of its 32-byte shingles seen before in it, 0 to 1.

    Shingles start at every byte; a quarter of them, chosen by their hash (so that equal shingles are chosen
    alike), is counted. Looks at the last 64 KiB. None for a prompt without any shingle. A polynomial hash
    modulo 2^64 over running sums: the window's sum divided by the power of its position.
    """
    data = np.frombuffer(prompt[-SHINGLE_PROMPT_BYTES_MAX:], dtype=np.uint8).astype(np.uint64)
    count = data.size - SHINGLE_BYTES + 1
    if count < 1:
        return None
    data += _ONE
    data *= _POWERS[: data.size]
    sums = np.zeros(data.size + 1, dtype=np.uint64)
    np.add.accumulate(data, out=sums[1:])
    hashes = (sums[SHINGLE_BYTES:] - sums[:count]) * _INVERSES[:count]
    chosen = hashes[hashes < _CHOSEN_BELOW]
    if chosen.size * SHINGLE_SAMPLE_MIN < count:
        # Few distinct shingles, and by chance the frequent ones were not chosen: count them all.
        chosen = hashes
    chosen.sort()
    distinct = 1 + int(np.count_nonzero(chosen[1:] != chosen[:-1]))
    return 1.0 - float(distinct) / float(chosen.size)


def segments_of(
    segments: tuple[tuple[str, str], ...], secret: Secret, ratio: TokenRatio
) -> tuple[Segment, ...]:
    """Return each part of a prompt as a keyed hash and an estimated token count."""
    encoded = [(kind, text.encode("utf-8", "surrogatepass")) for kind, text in segments]
    return tuple(
        Segment(kind=kind, hash=secret.digest(data), tokens=ratio.tokens(len(data)))
        for kind, data in encoded
    )
