"""Coding sessions: one stable prefix that grows, several users of one repository.

Shape, from real coding-agent sessions: a median of 96% of a prompt repeats from the request before,
and the prompt grows turn by turn. Messages go from the most shared to the least: system prompt and
tools (all sessions), repository (its users), the opening of the session, its earlier turns, and the
current edit or question last. Earlier turns carry reference answers, never the model's own, so every
arm of a comparison receives the same prompts.

A session either reworks one function again and again, or talks about it. Each edit's answer repeats
the last answer apart from one name or comment, which is what a draft from the prompt can gain on. A
question is answered in free words, on which it cannot. The two are not mixed within a session,
because a small model that has just answered in prose does not copy code well in its next answer.
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
    estimate_prompt_tokens,
    estimate_tokens,
    first_arrivals,
)
from trimtab.workloads.blocks import Block, draw_edit, find_blocks, function_name
from trimtab.workloads.texts import CODING_SYSTEM, CODING_TOOLS, QUESTIONS, REPOSITORY_READ

EDIT_LABEL: Final = "edit"
QUESTION_LABEL: Final = "question"
# Whole prompts were estimated at 0.89 to 1.05 of the tokenizer's count.
ESTIMATE_MARGIN: Final = 1.15
_SEED_BITS: Final = 31


class CodingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every size of a coding workload."""

    users: Annotated[
        int, Meta(ge=1, le=10_000, description="Users at work at the same time, one session each.")
    ] = 8
    repositories: Annotated[
        int, Meta(ge=1, le=1_000, description="Repositories; users are dealt out to them in turn.")
    ] = 3
    turns_per_session: Annotated[
        int, Meta(ge=1, le=100, description="Turns after which a user starts a new session.")
    ] = 8
    rate_per_s: Annotated[
        float, Meta(gt=0, le=10_000, description="Arrivals per second at peak multiplier 1.")
    ] = 1.0
    requests: Annotated[int, Meta(ge=1, le=1_000_000)] | None = msgspec.field(default=None)
    """Number of requests; give this or `duration_s`, not both."""
    duration_s: Annotated[float, Meta(gt=0, le=86_400)] | None = msgspec.field(default=None)
    """Seconds over which requests arrive; give this or `requests`, not both."""
    context_tokens: Annotated[
        int, Meta(ge=512, le=1_000_000, description="Context of one slot of the model, tokens.")
    ] = 2_048
    repository_tokens: Annotated[
        int, Meta(ge=40, le=500_000, description="Size of a repository's context, tokens.")
    ] = 200
    repository_seed: Annotated[int, Meta(ge=0)] | None = msgspec.field(default=None)
    """Seed of the repositories alone, so that workloads of other sessions share them; None draws them too."""
    block_tokens_max: Annotated[
        int, Meta(ge=16, le=200, description="Largest function that a session reworks, tokens.")
    ] = 36
    edit_share: Annotated[
        float,
        Meta(ge=0, le=1, description="Share of sessions that edit; the others ask questions."),
    ] = 0.6
    question_sampled_share: Annotated[
        float, Meta(ge=0, le=1, description="Share of questions sampled at a temperature above 0.")
    ] = 0.5
    question_temperature: Annotated[
        float, Meta(gt=0, le=2, description="Temperature of the sampled questions.")
    ] = 0.7
    edit_output_tokens_max: Annotated[
        int, Meta(ge=16, le=4_096, description="max_tokens of an edit.")
    ] = 54
    question_output_tokens_max: Annotated[
        int, Meta(ge=1, le=4_096, description="max_tokens of a question.")
    ] = 24
    think_s_min: Annotated[
        float, Meta(ge=0, le=3_600, description="Least seconds between two turns of a user.")
    ] = 2.0
    seed: Annotated[
        int, Meta(ge=0, description="Seed the caller made its generator from; kept in the result.")
    ] = 1
    peak: PeakShape = PeakShape()

    def __post_init__(self) -> None:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("give exactly one of requests and duration_s")


class _Repository(msgspec.Struct, frozen=True, kw_only=True):
    messages: tuple[Message, ...]
    blocks: tuple[Block, ...]


class _User:
    """Where one user's current session stands while the workload is being made."""

    def __init__(self, index: int, repository: _Repository, turns: int) -> None:
        self.index = index
        self.repository = repository
        self.turns_left = turns
        self.sessions = 0
        self.free_at_s = 0.0
        self.turn = 0
        self.edits = True
        self.messages: list[Message] = []
        self.code = ""
        self.questions: list[tuple[str, str]] = []


def coding(params: CodingParams, sources: Mapping[str, str], rng: random.Random) -> Workload:
    """Make a coding workload; `sources` maps a file name to its whole Python text.

    The same params, sources and generator state give identical bytes. Raises WorkloadError where the
    sources hold too few short functions or a prompt cannot fit the context.
    """
    times = (
        arrivals(params.rate_per_s, params.duration_s, params.peak, rng)
        if params.duration_s is not None
        else first_arrivals(params.rate_per_s, params.requests or 1, params.peak, rng)
    )
    seed = params.repository_seed
    shared = rng if seed is None else random.Random(seed)
    desk = _Desk(params, _make_repositories(params, sources, shared), rng)
    requests = tuple(desk.next_request(index, at_s) for index, at_s in enumerate(times))
    return Workload(
        name="coding",
        seed=params.seed,
        requests=requests,
        description=(
            f"{params.users} users in {params.repositories} repositories,"
            f" {params.turns_per_session} turns per session, {params.edit_share:.0%} of the sessions"
            f" edit; {params.question_sampled_share:.0%} of the questions at temperature"
            f" {params.question_temperature}, everything else at 0"
        ),
        scale={"context_tokens": params.context_tokens, "input_factor": 1.0, "output_factor": 1.0},
        peak=params.peak,
    )


def _make_repositories(
    params: CodingParams, sources: Mapping[str, str], rng: random.Random
) -> tuple[_Repository, ...]:
    """Deal the source files out to repositories until each has its context; no two share a file."""
    found = find_blocks(sources, tokens_max=params.block_tokens_max)
    modules = [module for module, blocks in found.items() if blocks]
    rng.shuffle(modules)
    repositories: list[_Repository] = []
    kept: list[Block] = []
    size = 0
    for module in modules:
        if len(repositories) == params.repositories:
            break
        blocks = rng.sample(found[module], len(found[module]))
        for block in blocks:
            block_tokens = estimate_tokens(block.code) + 1
            if size + block_tokens <= params.repository_tokens:
                size += block_tokens
                kept.append(block)
        # Room for less than one more block of average size: the context is full.
        if kept and size + params.block_tokens_max > params.repository_tokens:
            repositories.append(_make_repository(tuple(kept)))
            kept, size = [], 0
    if len(repositories) < params.repositories:
        raise WorkloadError(
            f"sources: {len(sources)} files fill {len(repositories)} of {params.repositories}"
            f" repositories of {params.repository_tokens} tokens with functions of 3 to 8 lines and at"
            f" most {params.block_tokens_max} tokens; give more files, or lower repositories or"
            " repository_tokens"
        )
    return tuple(repositories)


def _make_repository(blocks: tuple[Block, ...]) -> _Repository:
    files = ", ".join(sorted({block.module for block in blocks}))
    code = "\n\n".join(block.code for block in blocks)
    return _Repository(
        messages=(
            Message("system", CODING_SYSTEM + CODING_TOOLS),
            Message("user", f"Repository files {files}:\n{_fenced(code)}"),
            Message("assistant", REPOSITORY_READ),
        ),
        blocks=blocks,
    )


class _Desk:
    """All users at work; gives out their next turns."""

    def __init__(
        self, params: CodingParams, repositories: Sequence[_Repository], rng: random.Random
    ) -> None:
        self._params = params
        self._rng = rng
        # Kinds of session are dealt in proportion, from a drawn start: a workload of few sessions
        # then still has its share of edits.
        self._edit_credit = rng.random()
        # First sessions differ in length, so that later ones do not start together.
        turns = params.turns_per_session
        self._users = [
            _User(
                index,
                repositories[index % len(repositories)],
                turns - index * turns // params.users,
            )
            for index in range(params.users)
        ]

    def next_request(self, index: int, at_s: float) -> PlannedRequest:
        """Make the turn that falls on an arrival and move its session on by the reference answer."""
        params, rng, user = self._params, self._rng, self._choose_user(at_s)
        if not user.messages or user.turns_left == 0:
            self._open_session(user)
        ask, answer, code = self._draw_turn(user)
        if not self._fits(user, ask):
            self._open_session(user)
            ask, answer, code = self._draw_turn(user)
        if not self._fits(user, ask):
            raise WorkloadError(
                f"context_tokens: {params.context_tokens} is too small for a session's first turn;"
                " raise it or lower repository_tokens"
            )
        user.messages.append(Message("user", ask))
        sampled = not user.edits and rng.random() < params.question_sampled_share
        request = PlannedRequest(
            index=index,
            session=f"u{user.index}-s{user.sessions}",
            turn=user.turn,
            user=f"u{user.index}",
            send_at_s=at_s,
            endpoint=CHAT_ENDPOINT,
            body=chat_body(
                user.messages,
                max_tokens=self._output_tokens_max(user),
                temperature=params.question_temperature if sampled else 0.0,
                seed=rng.getrandbits(_SEED_BITS),
            ),
            label=EDIT_LABEL if user.edits else QUESTION_LABEL,
            expected_text=code if user.edits else None,
            expected_output_tokens=min(self._output_tokens_max(user), estimate_tokens(answer)),
        )
        user.messages.append(Message("assistant", answer))
        user.code = code
        user.turn += 1
        user.turns_left -= 1
        user.free_at_s = at_s + params.think_s_min
        return request

    def _choose_user(self, at_s: float) -> _User:
        """Give an arrival to a user who has had time to think, or to the one who waited longest."""
        free = [user for user in self._users if user.free_at_s <= at_s]
        if free:
            return self._rng.choice(free)
        return min(self._users, key=lambda user: (user.free_at_s, user.index))

    def _open_session(self, user: _User) -> None:
        """Start a session on one function of the user's repository."""
        self._edit_credit += self._params.edit_share
        user.edits = self._edit_credit >= 1.0
        self._edit_credit -= user.edits
        if user.sessions:
            user.turns_left = self._params.turns_per_session
        user.sessions += 1
        user.turn = 0
        user.code = self._rng.choice(user.repository.blocks).code
        user.questions = self._rng.sample(QUESTIONS, len(QUESTIONS))
        user.messages = [
            *user.repository.messages,
            Message("user", f"Show me `{function_name(user.code)}`."),
            Message("assistant", _fenced(user.code)),
        ]

    def _draw_turn(self, user: _User) -> tuple[str, str, str]:
        """Give what the user says, the reference answer, and the function afterwards."""
        if user.edits:
            edit = draw_edit(user.code, self._rng)
            return edit.ask, _fenced(edit.code), edit.code
        question, answer = user.questions[user.turn % len(user.questions)]
        return question, answer, user.code

    def _output_tokens_max(self, user: _User) -> int:
        params = self._params
        return params.edit_output_tokens_max if user.edits else params.question_output_tokens_max

    def _fits(self, user: _User, ask: str) -> bool:
        """Say whether the next prompt and its output fit, with a margin for the estimate."""
        prompt_tokens = estimate_prompt_tokens([*user.messages, Message("user", ask)])
        room_tokens = self._params.context_tokens - self._output_tokens_max(user)
        return prompt_tokens * ESTIMATE_MARGIN <= room_tokens


def _fenced(code: str) -> str:
    return f"```python\n{code}\n```"
