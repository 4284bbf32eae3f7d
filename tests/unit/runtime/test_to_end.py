"""Work in a thread that is waited for, cancelled or not."""

import asyncio
import threading

import pytest

from trimtab.runtime.to_end import in_thread


async def test_work_is_over_when_its_cancelled_waiter_is() -> None:
    """Who removes what the work writes finds all of it."""
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def work(word: str) -> None:
        begun.set()
        go.wait(10.0)
        done.append(word)

    waiting = asyncio.create_task(in_thread(work, "written"))
    await asyncio.to_thread(begun.wait, 10.0)
    waiting.cancel()
    asyncio.get_running_loop().call_soon(go.set)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done == ["written"]


async def test_result_and_error_are_those_of_the_work() -> None:
    """Nothing is lost on the way."""
    assert await in_thread(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 7, 0)
