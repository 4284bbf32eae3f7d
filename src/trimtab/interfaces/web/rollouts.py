"""The route through which a person acts on levers: `POST /rollouts`, for loopback or the admin token.

The body is JSON and must say so: a page of another site cannot send that to loopback without asking first.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from aiohttp import web

from trimtab.core.lever import LeverRecordError
from trimtab.core.ports import LaunchError
from trimtab.interfaces.web.fleet import read_json
from trimtab.runtime.operate import Asked, Done, Operator
from trimtab.runtime.proof import ControlError
from trimtab.runtime.supervisor import System
from trimtab.runtime.wire import ApiError

PATH: Final = "/rollouts"
BODY_BYTES_MAX: Final = 32 * 1024 * 1024
"""An evaluation comes in one piece, with a line for each item."""

FindOperator = Callable[[], Operator | None]


def rollout_routes(system: System, operator: FindOperator) -> Iterable[web.AbstractRouteDef]:
    """Return the route. `system` may still be being built: it is first used by a request."""
    return (web.post(PATH, _Rollouts(system, operator).act),)


class _Rollouts:
    """Hands what is asked to the operator; whoever asked may go away meanwhile."""

    def __init__(self, system: System, operator: FindOperator) -> None:
        self._system = system
        self._operator = operator
        self._tasks: set[asyncio.Task[Done]] = set()

    async def act(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        asked = await read_json(request, Asked, bytes_max=BODY_BYTES_MAX)
        operator = self._operator()
        if operator is None:
            raise ApiError(503, "server_error", "starting", "the fleet is still starting")
        task = asyncio.create_task(operator.carry_out(asked))
        self._tasks.add(task)
        task.add_done_callback(self._over)
        try:
            done = await asyncio.shield(task)
        except LeverRecordError as error:
            raise ApiError(400, "invalid_request_error", "record_refused", str(error)) from error
        except ControlError as error:
            raise ApiError(409, "invalid_request_error", "refused", str(error)) from error
        except LaunchError as error:
            raise ApiError(503, "server_error", "replica_unchanged", str(error)) from error
        # Who was answered may rely on it: a kill -9 right after must find it in the ledger.
        await self._system.ledger.flush()
        return web.Response(body=msgspec.json.encode(done), content_type="application/json")

    def _over(self, task: asyncio.Task[Done]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at here too: whoever asked may be gone, and the ledger holds how it ended.
            task.exception()
