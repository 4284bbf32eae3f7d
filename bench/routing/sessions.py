"""The sessions that every router meets: coding, each turn sent when the one before it was answered."""

import random
from collections.abc import Sequence
from typing import Final

import msgspec

from trimtab.runtime.sources import standard_library
from trimtab.workloads.base import PlannedRequest, Workload
from trimtab.workloads.coding import CodingParams, coding

TURNS_DRAWN: Final = 40
"""Turns drawn for each user, of which one whole session is taken."""

BLOCK_TOKENS_MAX: Final = 60
OWN: Final = "own"
SHARED: Final = "shared"
USERS_A_REPOSITORY: Final = {OWN: 1, SHARED: 4}


def sessions(kind: str, *, users: int, turns: int, repository_tokens: int, seed: int) -> Workload:
    """Return one session of so many turns for each user, all begun at once.

    `own`: every user has a repository alone, so that sessions share the system prompt only; `shared`: four users work
    in each repository. The order of users is drawn, so that no router gains from going round in turn.
    """
    repositories = max(1, users // USERS_A_REPOSITORY[kind])
    rng = random.Random(seed)
    drawn = coding(
        CodingParams(
            users=users,
            repositories=repositories,
            turns_per_session=turns,
            rate_per_s=1_000.0,
            requests=users * TURNS_DRAWN,
            repository_tokens=repository_tokens,
            block_tokens_max=BLOCK_TOKENS_MAX,
            think_s_min=0.0,
            seed=seed,
        ),
        standard_library(),
        rng,
    )
    order = list(range(users))
    rng.shuffle(order)
    found = [_whole_session(drawn.requests, user, turns) for user in order]
    requests = [
        msgspec.structs.replace(found[user][turn], index=turn * users + user, send_at_s=0.0)
        for turn in range(turns)
        for user in range(users)
    ]
    return msgspec.structs.replace(drawn, requests=tuple(requests))


def _whole_session(
    requests: Sequence[PlannedRequest], user: int, turns: int
) -> list[PlannedRequest]:
    """Return the first session of a user that has all its turns."""
    kept: dict[str, list[PlannedRequest]] = {}
    for request in requests:
        if request.user == f"u{user}":
            kept.setdefault(request.session, []).append(request)
    return next(session[:turns] for session in kept.values() if len(session) >= turns)


def split(workload: Workload, parts: int) -> list[Workload]:
    """Return the workload dealt out by hand: as many sessions, and as many users of each repository, to each part."""
    users = sorted({request.user or "" for request in workload.requests}, key=lambda user: user)
    # users are dealt to repositories in turn, so that neighbours in a repository are its number apart
    place = {
        user: at * parts // len(users) for at, user in enumerate(_by_repository(workload, users))
    }
    return [
        msgspec.structs.replace(
            workload,
            requests=tuple(one for one in workload.requests if place[one.user or ""] == part),
        )
        for part in range(parts)
    ]


def _by_repository(workload: Workload, users: Sequence[str]) -> list[str]:
    """Return users with those of one repository side by side, by how their prompts begin."""
    first = {request.user: request.body for request in reversed(workload.requests)}

    def beginning(user: str) -> bytes:
        messages = msgspec.json.decode(first[user])["messages"]
        return msgspec.json.encode(messages[:3])

    return sorted(users, key=lambda user: (beginning(user), user))
