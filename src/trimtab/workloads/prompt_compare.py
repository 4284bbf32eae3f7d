"""Two prompts of which the second could reuse the first: how far it can now, where it stops, how far it could.

A cache reuses the longest common beginning and nothing after it. A prompt is cut into stretches (each system block,
the tools, the messages); of each the common head and all that stands in both are known. Now, reuse ends in the first
stretch that differs. If what changes there stood behind everything stable, reuse would go on to the next stretch that
differs: that difference is the gain of one fix, in the order in which the fixes stand in the prompt.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from trimtab.workloads.prompt_changes import Changes, alike_share, changes, common_head
from trimtab.workloads.prompt_parts import Part, PartKind, Prompt, Tool

ALIKE_MIN_SHARE: Final = 0.5
"""From this common part on two texts are taken to be one text of which something changed."""

STABLE_AFTER_MIN_TOKENS: Final = 64
STABLE_AFTER_MIN_SHARE: Final = 0.3
"""A message whose beginning changes is judged only if so much after it does not."""


class Cause(StrEnum):
    """Why a prompt cannot reuse all that it has in common with the one before."""

    SYSTEM_TEXT = "system_text_changes"
    TOOL_ORDER = "tool_order_varies"
    TOOL_KEYS = "tool_key_order_varies"
    TOOL_TEXT = "tool_text_changes"
    TOOL_SET = "tool_set_changes"
    HISTORY_EDITED = "history_is_edited"
    HISTORY_CUT = "history_is_cut_in_front"
    CHANGING_FIRST = "changing_text_before_stable_text"
    HASH_DIFFERS = "hash_differs"


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """One place where two prompts part although the same thing should stand there.

    `token`, `byte`: of the first difference, from the start of the prompt and of the field. `text_line`: its line in
    the field, 0 where that says nothing. `kinds`: what changed, in words without text. `value`: a digest of the second
    prompt's field, to count variants. `gain_tokens`: what fixing this and all before it adds; None is unknown.
    """

    cause: Cause
    where: str
    before_line: int
    line: int
    token: float
    byte: int
    text_line: int
    kinds: tuple[str, ...]
    value: str
    gain_tokens: float | None = None
    lost_tokens: float = 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the second prompt, of them reusable now, and after all fixes (None: hashes cannot tell)."""

    tokens: float
    now: float
    after: float | None
    divergences: tuple[Divergence, ...]


class _Stretch(msgspec.Struct, kw_only=True):
    """A run of parts of the second prompt.

    `tokens` it has; `head` of them in common at the beginning; `stable` in both (None unknown); `goes_on`: whether
    reuse could go on behind it.
    """

    tokens: float = 0.0
    head: float = 0.0
    stable: float | None = 0.0
    whole: bool = True
    goes_on: bool = True
    found: Divergence | None = None


class _Pair(msgspec.Struct, frozen=True):
    """Two prompts, the earlier first."""

    before: Prompt
    after: Prompt

    def divergence(
        self,
        cause: Cause,
        where: str,
        value: str,
        change: Changes | None = None,
        part: Part | None = None,
        lost: float = 0.0,
    ) -> Divergence:
        head = change.head if change else 0
        return Divergence(
            cause=cause,
            where=where,
            before_line=self.before.line,
            line=self.after.line,
            token=part.tokens_of(head) if part else 0.0,
            byte=part.bytes_of(head) if part else 0,
            text_line=change.line if change else 0,
            kinds=change.kinds if change else (),
            value=hashlib.blake2b(
                value.encode("utf-8", "surrogatepass"), digest_size=8
            ).hexdigest(),
            lost_tokens=lost,
        )


def compare(before: Prompt, after: Prompt, *, opening: bool = False) -> Comparison:
    """Compare a prompt with an earlier one; `opening`: only what requests of one application share."""
    old = before.opening if opening else before.parts
    new = after.opening if opening else after.parts
    pair = _Pair(before, after)
    stretches = [
        *_system_stretches(pair, _leading(old), _leading(new)),
        *_tool_stretches(pair, _tools(old), _tools(new)),
        _message_stretch(pair, _messages(old), _messages(new)),
    ]
    return _sum(after.tokens, stretches)


def alike(before: Prompt, after: Prompt) -> bool:
    """Say whether the openings of two prompts are one text of which something changed."""
    shares = [
        (_alike(one, other), max(one.tokens, other.tokens))
        for one, other in zip(before.opening, after.opening, strict=False)
        if one.kind is other.kind
    ]
    fixed = [
        (share, tokens)
        for (share, tokens), part in zip(shares, after.opening, strict=False)
        if part.kind in (PartKind.SYSTEM, PartKind.TOOLS)
    ] or shares
    total = sum(tokens for _, tokens in fixed)
    return total > 0 and sum(share * tokens for share, tokens in fixed) / total >= ALIKE_MIN_SHARE


def _alike(one: Part, other: Part) -> float:
    if one.text == other.text:
        return 1.0
    if one.hashed or other.hashed:
        return 0.0
    if one.tools and other.tools:
        return _names_in_common(one.tools, other.tools)
    return alike_share(one.text, other.text)


def _names_in_common(one: Sequence[Tool], other: Sequence[Tool]) -> float:
    names, others = {tool.name for tool in one}, {tool.name for tool in other}
    return len(names & others) / max(1, len(names | others))


def _leading(parts: Sequence[Part]) -> list[Part]:
    found: list[Part] = []
    for part in parts:
        if part.kind is not PartKind.SYSTEM:
            break
        found.append(part)
    return found


def _tools(parts: Sequence[Part]) -> Part | None:
    return next((part for part in parts if part.kind is PartKind.TOOLS), None)


def _messages(parts: Sequence[Part]) -> list[Part]:
    rest = parts[len(_leading(parts)) :]
    return [part for part in rest if part.kind is not PartKind.TOOLS]


def _sum(tokens: float, stretches: Sequence[_Stretch]) -> Comparison:
    """Walk the stretches: reuse now, reuse after every fix, and the gain of each fix after those before it."""
    now: float | None = None
    reached, offset = 0.0, 0.0
    pending: tuple[Divergence, float] | None = None
    found: list[Divergence] = []
    for stretch in stretches:
        stop = reached + stretch.head
        if not stretch.whole or stretch.found is not None:
            now = stop if now is None else now
            if pending is not None:
                found.append(msgspec.structs.replace(pending[0], gain_tokens=stop - pending[1]))
                pending = None
        if stretch.found is not None:
            placed = msgspec.structs.replace(stretch.found, token=offset + stretch.found.token)
            if stretch.stable is None or not stretch.goes_on:
                found.append(placed)
            else:
                pending = (placed, stop)
        if stretch.stable is None:
            return Comparison(tokens=tokens, now=now or 0.0, after=None, divergences=tuple(found))
        reached, offset = reached + stretch.stable, offset + stretch.tokens
        if not stretch.goes_on:
            break
    if pending is not None:
        found.append(msgspec.structs.replace(pending[0], gain_tokens=reached - pending[1]))
    return Comparison(
        tokens=tokens,
        now=reached if now is None else now,
        after=reached,
        divergences=tuple(found),
    )


def _system_stretches(pair: _Pair, old: list[Part], new: list[Part]) -> list[_Stretch]:
    found = [
        _text_stretch(pair, one, other, f"system block {at}")
        for at, (one, other) in enumerate(zip(old, new, strict=False))
    ]
    if len(old) != len(new):
        gone = Changes(head=0, stable=0, line=0, kinds=("a whole block",))
        where = f"system block {min(len(old), len(new))}"
        at = pair.divergence(Cause.SYSTEM_TEXT, where, str(len(new)), gone)
        found.append(_Stretch(whole=False, found=at))
    return found


def _text_stretch(pair: _Pair, one: Part, other: Part, where: str) -> _Stretch:
    if one.text == other.text:
        return _Stretch(tokens=other.tokens, head=other.tokens, stable=other.tokens)
    if one.hashed or other.hashed:
        at = pair.divergence(Cause.HASH_DIFFERS, where, other.text)
        return _Stretch(stable=None, whole=False, found=at)
    change = changes(one.text, other.text)
    return _Stretch(
        tokens=other.tokens,
        head=other.tokens_of(change.head),
        stable=other.tokens * _kept(other, change),
        whole=False,
        found=pair.divergence(Cause.SYSTEM_TEXT, where, other.text, change, other),
    )


def _kept(part: Part, change: Changes) -> float:
    return change.stable / max(1, len(part.text))


def _tool_stretches(pair: _Pair, one: Part | None, other: Part | None) -> list[_Stretch]:
    if one is None and other is None:
        return []
    if one is None or other is None:
        gone = Changes(head=0, stable=0, line=0, kinds=("all tools come and go",))
        value = "" if other is None else other.text
        return [_Stretch(whole=False, found=pair.divergence(Cause.TOOL_SET, "tools", value, gone))]
    if one.text == other.text:
        return [_Stretch(tokens=other.tokens, head=other.tokens, stable=other.tokens)]
    if one.hashed or other.hashed or not one.tools or not other.tools:
        return [_text_stretch(pair, one, other, "tools")]
    return [_tool_stretch(pair, one, other)]


def _tool_stretch(pair: _Pair, one: Part, other: Part) -> _Stretch:
    head = common_head(one.text, other.text)
    had = Counter(tool.canonical for tool in one.tools)
    kept = list((had & Counter(tool.canonical for tool in other.tools)).elements())
    cause, kinds, value = _tool_cause(one.tools, other.tools)
    change = Changes(head=head, stable=head, line=0, kinds=kinds)
    size = sum(len(tool.canonical) for tool in other.tools)
    stable = other.tokens * sum(len(text) for text in kept) / max(1, size)
    found = pair.divergence(cause, "tools", value, change, other)
    return _Stretch(
        tokens=other.tokens,
        head=other.tokens_of(head),
        stable=max(stable, other.tokens_of(head)),
        whole=False,
        found=found,
    )


def _tool_cause(one: Sequence[Tool], other: Sequence[Tool]) -> tuple[Cause, tuple[str, ...], str]:
    """Say why two lists of tools differ, what differs, and by what variants are counted."""
    names, others = Counter(tool.name for tool in one), Counter(tool.name for tool in other)
    order = "\n".join(tool.name for tool in other)
    if names != others:
        gone, new = len(names - others), len(others - names)
        return Cause.TOOL_SET, (f"{new} tools added, {gone} removed",), order
    before, after = Counter(t.canonical for t in one), Counter(t.canonical for t in other)
    if before != after:
        changed = sorted({tool.name for tool in other if tool.canonical not in before})
        return Cause.TOOL_TEXT, (f"the text of {len(changed)} tools",), "".join(after)
    if [tool.name for tool in one] != [tool.name for tool in other]:
        return Cause.TOOL_ORDER, ("the order of the tools",), order
    return Cause.TOOL_KEYS, ("the order of keys inside a tool",), "".join(t.text for t in other)


def _message_stretch(pair: _Pair, old: list[Part], new: list[Part]) -> _Stretch:
    at = 0
    while at < min(len(old), len(new)) and old[at].text == new[at].text:
        at += 1
    equal = sum(part.tokens for part in new[:at])
    if at == len(old):
        # The engine wrote the reply itself and holds it too.
        if at < len(new) and new[at].kind is PartKind.REPLY:
            equal += new[at].tokens
        return _Stretch(head=equal, stable=equal)
    if at == len(new):
        return _Stretch(head=equal, stable=equal)
    return _message_divergence(pair, old, new, at, equal)


def _message_divergence(
    pair: _Pair, old: list[Part], new: list[Part], at: int, equal: float
) -> _Stretch:
    one, other = old[at], new[at]
    where = f"message {at} ({other.kind.value})"
    shifted = _shifted(old, new, at)
    if shifted:
        found = pair.divergence(Cause.HISTORY_CUT, "history", other.text, None, other, shifted)
        found = msgspec.structs.replace(found, token=equal)
        return _Stretch(head=equal, stable=equal, whole=False, goes_on=False, found=found)
    last = at == len(old) - 1 and at == len(new) - 1
    if one.hashed or other.hashed:
        edited = not last and at > 0
        cause = pair.divergence(Cause.HASH_DIFFERS, where, other.text) if edited else None
        stable = None if edited else equal
        return _Stretch(head=equal, stable=stable, whole=False, goes_on=False, found=cause)
    change = changes(one.text, other.text)
    head = equal + other.tokens_of(change.head)
    after = other.tokens * _kept(other, change) - other.tokens_of(change.head)
    similar = change.stable >= ALIKE_MIN_SHARE * max(len(one.text), len(other.text))
    if not last and (at > 0 or similar):
        later = zip(old[at + 1 :], new[at + 1 :], strict=False)
        kept = sum(part.tokens for was, part in later if was.text == part.text)
        found = pair.divergence(Cause.HISTORY_EDITED, "history", other.text, change, other)
        found = msgspec.structs.replace(found, token=head)
        return _Stretch(head=head, stable=head + after + kept, whole=False, found=found)
    if after >= STABLE_AFTER_MIN_TOKENS and after >= STABLE_AFTER_MIN_SHARE * other.tokens:
        found = pair.divergence(Cause.CHANGING_FIRST, where, other.text, change, other)
        found = msgspec.structs.replace(found, token=head)
        return _Stretch(head=head, stable=head + after, whole=False, found=found)
    return _Stretch(head=head, stable=head, whole=False, goes_on=False)


def _shifted(old: list[Part], new: list[Part], at: int) -> float:
    """Tokens of messages that stand in both, earlier in the second: the front of the history was cut off. 0 if not."""
    for start in range(at + 1, len(old)):
        if old[start].text != new[at].text:
            continue
        pairs = zip(old[start:], new[at:], strict=False)
        if all(was.text == now.text for was, now in pairs):
            return sum(part.tokens for part in new[at : at + len(old) - start])
    return 0.0
