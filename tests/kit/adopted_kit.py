"""An adopted lever on two replicas, its triggers fed with views of the fleet and with requests."""

from collections import deque

import msgspec
from control_kit import LIVES_S, Rig
from rollout_kit import served
from routing_kit import replica

from trimtab.core.cuts import Cut
from trimtab.core.decision import FleetView
from trimtab.core.events import TriggerMoved
from trimtab.core.lever import LeverRecord
from trimtab.core.record import Drafting, RequestRecord
from trimtab.core.types import Arm
from trimtab.runtime.trigger_watch import TriggerShell

RECORDS_KEPT = 2_000


class Adopted(Rig):
    """An adopted lever that drafts, its triggers fed once a second with a view and some requests."""

    def __init__(self, lever: LeverRecord) -> None:
        super().__init__()
        now_s = self.clock.wall_s()
        self.lever = msgspec.structs.replace(
            lever, created_at_s=now_s, expires_at_s=now_s + LIVES_S
        )
        self.records: deque[RequestRecord] = deque(maxlen=RECORDS_KEPT)
        self.in_flight: list[RequestRecord] = []
        self.shell = TriggerShell(
            actuator=self.actuator,
            sink=self.sink,
            clock=self.clock,
            records=lambda: tuple(self.records),
            load_bound=1.25,
            baseline_policy="round_robin",
            distrust=lambda: None,
        )

    async def adopt(self) -> "Adopted":
        """Adopt it as a proof would, with requests of the baseline known."""
        self.records += [self.request(n, 0.0, None, replica="r0") for n in range(40)]
        await self.actuator.prepare(self.lever, cause_id="P")
        self.actuator.adopt(self.lever, policy=None, cuts=self.lever.cuts, cause_id="A")
        self.shell.adopt(self.lever, None, self.lever.cuts, "A")
        return self

    def request(
        self, number: int, temperature: float, acceptance: float | None, *, replica: str = "r1"
    ) -> RequestRecord:
        """One that ends now; drafts of 100 tokens, of which that part was accepted."""
        now_s = self.clock.wall_s()
        drafts = Drafting()
        if acceptance is not None:
            drafts = Drafting(drafts=20, drafted=100, accepted=round(100 * acceptance))
        one = served(None, Arm.BASELINE, number=number, at=now_s, output=100, replica=replica)
        return msgspec.structs.replace(
            one,
            finished_at_s=now_s,
            temperature=temperature,
            drafting=drafts,
            label="edit",
            tpot_ms=20.0 if acceptance is None else 14.0,
        )

    async def seconds(
        self, n: int, *, batch: int = 4, mix: tuple[tuple[float, float, int], ...] = ()
    ) -> None:
        """Seconds at a batch; `mix`: temperature, acceptance and requests a second of each kind."""
        for _ in range(n):
            self.clock.pass_s(1.0)
            theirs = replica("r1", running=batch, slots=512)
            self.shell.saw(FleetView(at_s=self.clock.wall_s(), replicas=(replica("r0"), theirs)))
            for temperature, acceptance, count in mix:
                self.records += [self.request(n, temperature, acceptance) for n in range(count)]
            await self.shell.tick()
            await self.shell.settle()

    async def serve(self, seconds: int, *, per_s: float, service_s: float) -> None:
        """Let requests arrive evenly and take their time, on both replicas in turn; a view and a look a second."""
        for _ in range(seconds):
            now_s = self.clock.wall_s()
            for number in range(round(per_s)):
                at_s = now_s + (number + 0.5) / per_s
                one = served(None, Arm.BASELINE, number=number, at=at_s, replica=f"r{number % 2}")
                self.in_flight.append(msgspec.structs.replace(one, finished_at_s=at_s + service_s))
            self.clock.pass_s(1.0)
            now_s = self.clock.wall_s()
            self.records += [one for one in self.in_flight if one.finished_at_s <= now_s]
            self.in_flight = [one for one in self.in_flight if one.finished_at_s > now_s]
            await self.look(len(self.in_flight))

    async def look(self, in_flight: int | None) -> None:
        """Look at the fleet with so many requests in flight; None: it was not read."""
        if in_flight is not None:
            shares = (in_flight - in_flight // 2, in_flight // 2)
            busy = tuple(
                replica(f"r{at}", running=share, slots=512) for at, share in enumerate(shares)
            )
            self.shell.saw(FleetView(at_s=self.clock.wall_s(), replicas=busy))
        await self.shell.tick()
        await self.shell.settle()

    @property
    def is_on(self) -> bool:
        """Whether the lever serves."""
        return self.shell.adopted[self.lever.name].is_on

    @property
    def without(self) -> tuple[Cut, ...]:
        """The cuts that the plan keeps off it."""
        found = [p for p in self.actuator.plan.preferences if p.lever == self.lever.name]
        return found[0].without if found else ()

    @property
    def turns(self) -> int:
        """How often it went off or on."""
        return len(self.events("rollout_moved"))

    def fired(self) -> list[str]:
        """Triggers that took something off."""
        told = [e for e in self.events("trigger_moved") if isinstance(e, TriggerMoved)]
        return [e.trigger.name for e in told if e.fired]
