"""What the core asks of the outside world. Runtime implements these; tests implement them too.

The contracts are written here once; implementations do not repeat them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from trimtab.core.decision import ReplicaView
from trimtab.core.events import AnyEvent, Envelope
from trimtab.core.evidence import Reading
from trimtab.core.handover import Delivery, Parcel
from trimtab.core.revision import Revision
from trimtab.core.types import Constraint, ErrorClass


class Clock(Protocol):
    """The only source of time outside runtime."""

    def wall_s(self) -> float:
        """Seconds since 1970, UTC; for the ledger."""
        ...

    def mono_s(self) -> float:
        """Seconds that never go backwards; for durations and schedules."""
        ...


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine said of one finished request; None is unknown."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    drafts: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None
    finish_reason: str | None = None


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event of a completion stream, as far as it is understood.

    `text`: output text it carries (hashed and counted by the caller, never stored); `done`: the terminator;
    `report` on the event that carries usage; `usage_only`: a usage chunk without output, which a client that did
    not ask for usage must not see.
    """

    text: str = ""
    finish_reason: str | None = None
    report: EngineReport | None = None
    usage_only: bool = False
    done: bool = False
    error: str | None = None


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a request body says, parsed once at the edge. `segments`: (kind, text) in prompt order."""

    model: str | None
    stream: bool
    wants_usage: bool
    temperature: float | None
    max_tokens: int | None
    constraint: Constraint
    segments: tuple[tuple[str, str], ...]
    n: int = 1
    cache_salt: str | None = None
    user: str | None = None


class EngineFormat(Protocol):
    """The wire format of one engine: bytes in, typed values out; no sockets, no clock."""

    @property
    def name(self) -> str:
        """The engine's name as it stands in revisions."""
        ...

    def read_request(self, path: str, body: bytes) -> RequestFacts:
        """Read a /v1 body; raises `EngineFormatError` with a message for the client if it cannot be read."""
        ...

    def edit_request(
        self,
        body: bytes,
        *,
        include_usage: bool,
        id_slot: int | None,
        cache_salt: str | None = None,
    ) -> bytes:
        """Apply the declared edits to a request body and nothing else; equal bytes if there is nothing to do.

        `cache_salt`: goes over the body's own; None leaves that as it is.
        """
        ...

    def read_stream_event(self, data: bytes) -> StreamEvent:
        """Read the data of one server-sent event; raises `EngineFormatError` on garbage."""
        ...

    def read_response(self, body: bytes) -> StreamEvent:
        """Read a whole non-streaming response body as one event with its report."""
        ...

    def classify_error(self, status: int, body: bytes) -> ErrorClass:
        """Say which class of error a response of status >= 400 is."""
        ...

    def read_metrics(self, text: str, *, source: str, at_s: float) -> tuple[Reading, ...]:
        """Read a /metrics page into readings under trimtab's names; what is absent is `Unknown`."""
        ...

    def launch_args(self, revision: Revision, placement: "Placement") -> Mapping[str, object]:
        """Return the launch knobs of a revision at a placement, as JSON-encodable values."""
        ...


class EngineFormatError(ValueError):
    """Bytes that an engine's format cannot explain, or a revision it cannot launch."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where a replica runs: its name, port, threads, CPU set and where it may put slot files."""

    replica: str
    host: str
    port: int
    threads: int
    cpus: tuple[int, ...]
    slot_dir: str
    log_path: str


class SavedKV(msgspec.Struct, frozen=True, kw_only=True):
    """The slots of a replica saved to files, to be restored into a replica of an equal KV key."""

    replica: str
    files: tuple[tuple[int, str], ...]
    tokens: int
    bytes: int
    took_ms: float


class Launcher(Protocol):
    """Starts, stops and restarts replicas of one engine."""

    async def start(self, revision: Revision, placement: Placement) -> str:
        """Start a replica and return its base URL once it is healthy; raises `LaunchError`."""
        ...

    async def stop(self, replica: str, *, grace_s: float) -> None:
        """Stop a replica: ask, wait `grace_s`, kill. Returns when the process is gone."""
        ...

    async def save_kv(self, replica: str) -> SavedKV:
        """Save the KV of every idle slot to files of mode 0600; raises `LaunchError`."""
        ...

    async def restore_kv(self, replica: str, saved: SavedKV) -> SavedKV:
        """Restore saved slots and remove their files; raises `LaunchError`."""
        ...

    def memory_bytes(self, replica: str) -> int | None:
        """Resident memory of a replica's process in bytes, None if it cannot be read."""
        ...

    def cpu_s(self, replica: str) -> float | None:
        """CPU seconds used by a replica's process so far, None if it cannot be read."""
        ...


class LaunchError(RuntimeError):
    """A replica could not be started, stopped, saved or restored; the message says which, why and the fix."""


class LedgerSink(Protocol):
    """Where events go. `append` never blocks the caller on disk; `healthy` turns False when writing fails."""

    def append(self, event: AnyEvent, *, cause_id: str | None, durable: bool = False) -> str:
        """Queue an event and return its id. `durable`: synced to disk before later durable events return."""
        ...

    @property
    def healthy(self) -> bool:
        """False once an event could not be written: levers freeze, traffic goes on."""
        ...

    async def flush(self) -> None:
        """Wait until everything appended so far is on disk (or the sink is unhealthy)."""
        ...


class LedgerReader(Protocol):
    """Reads a ledger in order."""

    def read(self, *, after_seq: int = 0, limit: int | None = None) -> Sequence[Envelope]:
        """Return envelopes in order of `seq`, those after `after_seq`."""
        ...


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to be prefilled for another replica. `body` is the client's, declared edits made; it is not kept.

    `path`: of the /v1 route; `headers`: what the replica is told beside it; `blocks`: the prompt's hashed blocks, by
    which a prefill side finds what it holds; `held_tokens`: those of the prompt that it is believed to hold.
    """

    request_id: str
    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    blocks: tuple[int, ...]
    prompt_tokens: int
    held_tokens: int = 0

    @property
    def uncached_tokens(self) -> int:
        """Return how many tokens the prefill side computes: the last one always."""
        return max(1, self.prompt_tokens - self.held_tokens)


class KvTransfer(Protocol):
    """Moves KV between replicas of one engine. Every call may raise `HandOverError` with its cause.

    Cancelling `prefill` or `deliver` stops the engine's work and leaves nothing behind. Exactly one `discard` follows a
    parcel and exactly one `release` a delivery, whatever happened between; neither raises.
    """

    @property
    def transport(self) -> str:
        """What moves the bytes, in words."""
        ...

    def has_room(self, source: ReplicaView, prompt_tokens: int) -> bool:
        """Say whether a parcel of such a prompt would find room now; True where its size is not known yet."""
        ...

    async def prefill(
        self, what: Prefill, source: ReplicaView, *, holds: Callable[[], None]
    ) -> Parcel:
        """Have the prompt computed on `source` and its KV made ready there.

        `holds` is called once, when it was computed where its blocks stay for later prompts; never for what passes.
        """
        ...

    async def deliver(self, parcel: Parcel, target: ReplicaView, *, deadline_s: float) -> Delivery:
        """Bring a parcel to where it is decoded, or say what makes the decode side fetch it.

        `deadline_s`: of the monotonic clock, until which room there may be waited for.
        """
        ...

    def discard(self, parcel: Parcel) -> None:
        """Free what a parcel holds on its prefill side, delivered or not."""
        ...

    def release(self, delivery: Delivery) -> None:
        """Note that the decode request has ended: what was set aside for it is free again."""
        ...
