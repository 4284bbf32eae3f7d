"""What the load state keeps of each request in flight and of each replica's work."""

import msgspec


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """Streams in flight at an admission, the admitted one included: on its replica, and in the fleet."""

    batch: int
    concurrency: int


class Flight(msgspec.Struct, kw_only=True):
    """A request in flight. `ends_at`: the replica's step by which all that is expected of it has come, where told."""

    replica: str
    prefill_tokens: int
    decode_tokens: int
    first_token_seen: bool = False
    ends_at: int | None = None


class Work(msgspec.Struct, kw_only=True):
    """What is in flight on a replica, which is at place `at` of the columns (-1: it left).

    `others_running` and `others_waiting`: requests of other gateways, as of the last probe. `streams`: those whose
    output comes with the `steps` that are told and of which more is expected; `ends` is a heap
    of (ends_at, order, request) over them, in which requests that are gone may linger.
    """

    at: int = -1
    running: int = 0
    waiting: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    steps: int = 0
    streams: int = 0
    others_running: int = 0
    others_waiting: int = 0
    ends: list[tuple[int, int, Flight]] = []
