"""Chat: short prompts of people who have little in common, and a mix with coding sessions.

The counterpart of `coding`: every session opens with words of its own, so little can be reused
across sessions, and answers are free text, so a draft from the prompt has little to find.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from trimtab.workloads.base import (
    CHAT_ENDPOINT,
    Message,
    PeakShape,
    PlannedRequest,
    Workload,
    WorkloadError,
    arrivals,
    chat_body,
    estimate_tokens,
    first_arrivals,
)
from trimtab.workloads.coding import CodingParams, coding
from trimtab.workloads.texts import CHAT_ACTS, CHAT_ANSWERS, CHAT_FRAMES, CHAT_SUBJECTS, CHAT_SYSTEM

CHAT_LABEL: Final = "chat"
_SEED_BITS: Final = 31


class ChatParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every size of a chat workload."""

    users: Annotated[
        int, Meta(ge=1, le=10_000, description="People who chat at the same time.")
    ] = 8
    turns_per_session: Annotated[
        int, Meta(ge=1, le=20, description="Turns after which a person starts something new.")
    ] = 2
    rate_per_s: Annotated[
        float, Meta(gt=0, le=10_000, description="Arrivals per second at peak multiplier 1.")
    ] = 1.0
    requests: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Number of requests; give this or `duration_s`, not both."""
    duration_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None
    """Seconds over which requests arrive; give this or `requests`, not both."""
    output_tokens_max: Annotated[
        int, Meta(ge=1, le=4_096, description="max_tokens of an answer.")
    ] = 32
    temperature: Annotated[float, Meta(ge=0, le=2, description="Temperature of every request.")] = (
        0.7
    )
    seed: Annotated[
        int, Meta(ge=0, description="Seed the caller made its generator from; kept in the result.")
    ] = 1
    peak: PeakShape = PeakShape()

    def __post_init__(self) -> None:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")


class MixedParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mix: both parts run over the same time, each at its own rate."""

    coding: CodingParams
    chat: ChatParams


class _Talk:
    """One person's current conversation while the workload is being made."""

    def __init__(self) -> None:
        self.sessions = 0
        self.turn = 0
        self.messages: list[Message] = []


def chat(params: ChatParams, rng: random.Random) -> Workload:
    """Make a chat workload: short prompts, little shared beyond one system sentence.

    The same params and generator state give identical bytes.
    """
    times = (
        arrivals(params.rate_per_s, params.duration_s, params.peak, rng)
        if params.duration_s is not None
        else first_arrivals(params.rate_per_s, params.requests or 1, params.peak, rng)
    )
    talks = [_Talk() for _ in range(params.users)]
    requests = []
    for index, at_s in enumerate(times):
        person = rng.randrange(params.users)
        requests.append(_next_request(params, person, talks[person], index, at_s, rng))
    return Workload(
        name="chat",
        seed=params.seed,
        requests=tuple(requests),
        description=(
            f"{params.users} people, {params.turns_per_session} turns per session,"
            f" temperature {params.temperature}"
        ),
        scale={"input_factor": 1.0, "output_factor": 1.0},
        peak=params.peak,
    )


def _next_request(
    params: ChatParams, person: int, talk: _Talk, index: int, at_s: float, rng: random.Random
) -> PlannedRequest:
    if not talk.messages or talk.turn == params.turns_per_session:
        talk.sessions += 1
        talk.turn = 0
        talk.messages = [Message("system", CHAT_SYSTEM)]
    act, subject = rng.choice(CHAT_ACTS), rng.choice(CHAT_SUBJECTS)
    talk.messages.append(Message("user", f"{rng.choice(CHAT_FRAMES)}{act} {subject}?"))
    answer = rng.choice(CHAT_ANSWERS)
    request = PlannedRequest(
        index=index,
        session=f"c{person}-s{talk.sessions}",
        turn=talk.turn,
        send_at_s=at_s,
        endpoint=CHAT_ENDPOINT,
        body=chat_body(
            talk.messages,
            max_tokens=params.output_tokens_max,
            temperature=params.temperature,
            seed=rng.getrandbits(_SEED_BITS),
        ),
        label=CHAT_LABEL,
        expected_output_tokens=min(params.output_tokens_max, estimate_tokens(answer)),
    )
    talk.messages.append(Message("assistant", answer))
    talk.turn += 1
    return request


def mixed(params: MixedParams, sources: Mapping[str, str], rng: random.Random) -> Workload:
    """Merge a coding and a chat workload by intended send time.

    Session names stay distinct. Raises WorkloadError where the two parts state different seeds or
    peaks: a result could then not be named by one of each.
    """
    if params.coding.seed != params.chat.seed or params.coding.peak != params.chat.peak:
        raise WorkloadError("coding and chat differ in seed or peak; give both the same")
    return merge(
        "mixed",
        (coding(params.coding, sources, rng), chat(params.chat, rng)),
    )


def merge(name: str, parts: Sequence[Workload]) -> Workload:
    """Merge workloads by intended send time; ties keep the order of the parts."""
    requests = sorted(
        (request for part in parts for request in part.requests),
        key=lambda request: request.send_at_s,
    )
    return Workload(
        name=name,
        seed=parts[0].seed,
        requests=tuple(
            msgspec.structs.replace(request, index=index) for index, request in enumerate(requests)
        ),
        description=" | ".join(f"{part.name}: {part.description}" for part in parts),
        scale={f"{part.name}_{key}": value for part in parts for key, value in part.scale.items()},
        peak=parts[0].peak,
    )
