"""The servers that are measured: all on the same cores, since only one of them is ever at work.

KV of prompts that were computed once goes to the slots of the others through files in memory.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec

from trimtab.core.ports import Clock
from trimtab.core.revision import Revision, Speculation
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.speculate_arm import DraftArm

_IDLE_POLL_S: Final = 0.02
_IDLE_WAIT_S: Final = 30.0


class DraftStage:
    """Starts and ends arms of one revision that differ in their speculation."""

    def __init__(
        self,
        launcher: LlamaCppLauncher,
        session: aiohttp.ClientSession,
        clock: Clock,
        revision: Revision,
    ) -> None:
        self._launcher = launcher
        self._session = session
        self._clock = clock
        self.revision = revision
        self.threads = 0
        self._started: set[str] = set()

    async def start(self, name: str, speculation: Speculation) -> DraftArm:
        """Start an arm; raises `LaunchError`."""
        # The other half of the cores is left to this process, which reads the streams.
        placement = self._launcher.place([name, "reader"])[0]
        self.threads = placement.threads
        self._started.add(name)
        url = await self._launcher.start(self.revision.replace(speculation=speculation), placement)
        return DraftArm(name, url, self._session, self._clock)

    async def stop(self, arm: DraftArm) -> None:
        """End an arm."""
        self._started.discard(arm.name)
        await self._launcher.stop(arm.name, grace_s=1.0)

    def ended(self) -> str:
        """Say which arms ended by themselves, as the end of a sentence; empty where none did."""
        gone = [name for name in sorted(self._started) if self._launcher.pid(name) is None]
        told = ", ".join(
            f"{name} ({self._launcher.last_words(name) or 'no words'})" for name in gone
        )
        return f"; ended by itself: {told}" if gone else ""

    async def spread(self, source: DraftArm, target: DraftArm, places: Sequence[int]) -> None:
        """Give slot i of `target` the KV of slot `places[i]` of `source`; raises `ArmError`, `LaunchError`."""
        await self.idle(source)
        saved = await self._launcher.save_kv(source.name)
        try:
            names = dict(saved.files)
            if missing := sorted(set(places) - set(names)):
                raise ArmError(
                    f"{source.name} did not save slot {missing[0]}: is the memory file system full?"
                )
            wanted = tuple((slot, names[place]) for slot, place in enumerate(places))
            copied = await self._launcher.restore_kv(
                target.name, msgspec.structs.replace(saved, files=wanted)
            )
        finally:
            self._launcher.discard_kv(saved)
        if len(copied.files) < len(wanted):
            raise ArmError(
                f"{target.name} took {len(copied.files)} of {len(wanted)} slots: are some still at work?"
            )

    async def idle(self, arm: DraftArm) -> None:
        """Wait until no slot is at work, such as after a loop that was broken off; raises `ArmError`."""
        deadline_s = self._clock.mono_s() + _IDLE_WAIT_S
        while any(slot.is_processing for slot in await self._launcher.slots(arm.name)):
            if self._clock.mono_s() > deadline_s:
                raise ArmError(f"{arm.name} still computes after {_IDLE_WAIT_S:g} s")
            await asyncio.sleep(_IDLE_POLL_S)
