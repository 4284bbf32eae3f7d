"""How a child process is ended: asked, waited for, killed; and not left behind when whoever ends it is cancelled."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable


async def end_process(
    process: asyncio.subprocess.Process,
    *,
    grace_s: float,
    kill: Callable[[], None],
    gone: Callable[[], Awaitable[object]],
) -> None:
    """End a process: SIGTERM, `grace_s`, `kill`. Returns when `gone` does, cancelled or not.

    `kill`: ends it and what belongs to it at once; `gone`: waits until nothing of it is left.
    """
    ending = asyncio.ensure_future(_ask_and_kill(process, grace_s, kill, gone))
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        kill()
        await ending
        raise


async def _ask_and_kill(
    process: asyncio.subprocess.Process,
    grace_s: float,
    kill: Callable[[], None],
    gone: Callable[[], Awaitable[object]],
) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_s)
    except TimeoutError:
        kill()
    await gone()
