"""One attached server: where it is, what it said of itself, how loaded it was when it was read last."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from trimtab.core.config import AttachedServer
from trimtab.core.evidence import Readings, Unknown
from trimtab.core.ports import LaunchError
from trimtab.core.revision import Model, Revision
from trimtab.core.served import EngineKind, ServerSample
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.attached import SLOTS_UNKNOWN, Identity
from trimtab.engines.served_load import (
    EngineLoad,
    has_restarted,
    load_of,
    ranks_of,
    readings_of_sample,
)
from trimtab.runtime.access import Access
from trimtab.runtime.attach_read import Seen
from trimtab.runtime.fleet import ReplicaInfo

KEEP_EVERY_S: Final = 15.0
KEPT_MAX: Final = 5
"""Pages of each server that are kept, and how far apart: a minute, for what grows over time."""

STALE_AFTER: Final = 3.0
"""A reading is stale when this many reads should have come since."""


class Member:
    """The changing part of one server. Times are of the monotonic clock but for `started_at_s`."""

    def __init__(self, server: AttachedServer, replica: str, access: Access) -> None:
        self.server = server
        self.id = replica
        self.url = base_url(server.url)
        self.access = access
        self.state = ReplicaState.STARTING
        self.reason = ""
        self.role = server.role
        self.changes_role = False
        self.identity: Identity | None = None
        self.revision = unseen()
        self.started_at_s = 0.0
        self.restarts = 0
        self.kv_kept = False
        self.failures = 0
        self.looked = asyncio.Event()
        self.sample: ServerSample | None = None
        self.because = "not read yet"
        self.task: asyncio.Task[None] | None = None
        self._sampled_at_s = 0.0
        self._kept: deque[ServerSample] = deque(maxlen=KEPT_MAX)
        self._load = EngineLoad()
        self._ranks: frozenset[str] = frozenset()

    def info(self) -> ReplicaInfo:
        """Return the server as it is now."""
        return ReplicaInfo(
            id=self.id,
            state=self.state,
            revision=self.revision,
            role=self.role,
            url=self.url,
            pid=None,
            threads=1,
            started_at_s=self.started_at_s,
            crashes=self.restarts,
            reason=self.reason,
            kv_kept=self.kv_kept,
            labels=self.server.labels,
            kv_key=self.identity.kv_key if self.identity else "",
        )

    def takes_for_restarted(self, seen: Seen) -> bool:
        """Say whether a page shows that the server began anew since the page before."""
        before, sample = self.sample, seen.sample
        return before is not None and sample is not None and has_restarted(before, sample)

    def take(self, seen: Seen) -> EngineLoad | None:
        """Take in a look and return the load that it told, None if it told none."""
        self.failures, self.because = 0, seen.because
        sample = seen.sample
        if sample is None:
            return None
        self._load = load_of(sample, ranks_before=self._ranks)
        self._ranks = self._ranks | ranks_of(sample)
        self.sample, self._sampled_at_s = sample, seen.at_mono_s
        if not self._kept or sample.at_s - self._kept[-1].at_s >= KEEP_EVERY_S:
            self._kept.append(sample)
        self.started_at_s = sample.started_at_s or self.started_at_s
        return self._load

    def began_anew(self, wall_s: float) -> None:
        """Forget who the server was: its cache is empty, and its model may be another."""
        self.restarts += 1
        self.identity, self.sample, self.kv_kept = None, None, False
        self._ranks, self._load = frozenset(), EngineLoad()
        self._kept.clear()
        self.started_at_s = wall_s

    def history(self) -> tuple[ServerSample, ...]:
        """Return pages of the last minute, oldest first, the latest among them."""
        latest = () if self.sample is None or self.sample is self._kept[-1] else (self.sample,)
        return (*self._kept, *latest)

    def age_s(self, now_s: float) -> float | None:
        """Return the age of the latest page, None before the first."""
        return None if self.sample is None else now_s - self._sampled_at_s

    def load(self, now_s: float, every_s: float) -> EngineLoad:
        """Return the latest load; everything is unknown once it is stale."""
        age_s = self.age_s(now_s)
        is_fresh = age_s is not None and age_s <= STALE_AFTER * every_s
        return self._load if is_fresh else EngineLoad()

    def readings(self, now_s: float, every_s: float) -> Readings:
        """Return the latest page as readings; unknown, with the age, once they are stale."""
        age_s = self.age_s(now_s)
        if self.sample is None or age_s is None:
            return Readings()
        found = readings_of_sample(self.sample, source=self.id)
        if age_s <= STALE_AFTER * every_s:
            return found
        reason = f"stale: last read {age_s:.1f} s ago ({self.because or 'late'})"
        return Readings(tuple(Unknown(item.name, reason) for item in found.items))

    def words(self) -> str:
        """Say what a server that is well is, for whoever reads why it became ready."""
        identity = self.identity
        assert identity is not None, "a server is identified before it is ready"
        unknown = identity.engine is EngineKind.UNKNOWN
        engine = "an unknown engine" if unknown else identity.engine.value
        told = "" if identity.slots_told or self.server.slots else ", the engine's default"
        metrics = f"; load unknown: {self.because}" if self.because else ""
        version = f" {identity.version}" if identity.version else ""
        return f"well: {engine}{version}, {identity.slots} slots{told}{metrics}"


def keeps_role(member: Member, role: Role, members: Collection[Member], *, stopping: bool) -> str:
    """Say why a server must keep its role, nothing where it need not."""
    if stopping:
        return "the fleet is stopping"
    if member.state is not ReplicaState.READY:
        return f"it is {member.state.value}"
    if member.identity is None or not member.identity.kv_key:
        return "it was started without a KV connector, so that nothing can be handed over"
    others = (one for one in members if one is not member)
    serves = any(one.state is ReplicaState.READY and one.role is not Role.PREFILL for one in others)
    return "no other takes whole requests" if role is Role.PREFILL and not serves else ""


def base_url(url: str) -> str:
    """Return where a server's paths begin: without a slash or /v1 at the end, which clients put there themselves."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def named(servers: Sequence[AttachedServer]) -> Mapping[str, AttachedServer]:
    """Return servers by name; raises `LaunchError` where two have one name or one address.

    A server without a name gets one from a hash of its address: several gateways agree on it without speaking, and a
    client that reads it learns no address.
    """
    found: dict[str, AttachedServer] = {}
    places: dict[str, str] = {}
    for server in servers:
        url = base_url(server.url)
        name = server.name or f"s-{hashlib.sha256(url.encode()).hexdigest()[:6]}"
        if url in places:
            raise LaunchError(f"{url} is attached twice, as {places[url]} and as {name}")
        if name in found:
            raise LaunchError(f"two attached servers are called {name}: {found[name].url}, {url}")
        places[url], found[name] = name, server
    return found


def unseen() -> Revision:
    """Return the revision of a server that has not told anything yet."""
    return Revision(
        engine=EngineKind.UNKNOWN.value,
        engine_version="unknown",
        model=Model(path="", sha256="", name=""),
        kv_type="unknown",
        slots=SLOTS_UNKNOWN,
        context_tokens=0,
        layout="unknown",
    )
