"""The routes that change a fleet, for loopback or the admin token.

`POST /fleet/replicas`: one replica more or less; `POST /fleet/roles`: another role for one.

The body is JSON and must say so: a page of another site cannot send that to loopback without asking first.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from trimtab.core.ports import LaunchError
from trimtab.core.types import FleetAction, Role
from trimtab.runtime.resize import RefusedError, Resized, Resizer
from trimtab.runtime.role_keeper import RoleChanged, RoleRefusedError
from trimtab.runtime.supervisor import System
from trimtab.runtime.wire import ApiError

PATH: Final = "/fleet/replicas"
ROLES_PATH: Final = "/fleet/roles"
BODY_BYTES_MAX: Final = 4096

T = TypeVar("T")


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for. `replica`: which one leaves; `force`: whatever the check says."""

    action: FleetAction
    replica: str = ""
    force: bool = False


class AskedRole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which replica is to take which role. A replica that takes whole requests is mixed, or decode beside others that
    prefill: either word asks for it.
    """

    replica: str
    role: Role


def fleet_routes(system: System) -> Iterable[web.AbstractRouteDef]:
    """Return the routes. `system` may still be being built: it is first used by a request."""
    fleet = _Fleet(system)
    return (web.post(PATH, fleet.change), web.post(ROLES_PATH, fleet.change_role))


class _Fleet:
    """Carries out what is asked of one system's fleet."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._resizer = Resizer(system)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def change(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        asked = await read_json(request, Asked, bytes_max=BODY_BYTES_MAX)
        return await self._answer(self._carry_out(asked))

    async def change_role(self, request: web.Request) -> web.Response:
        self._system.gateway.check_admin(request)
        asked = await read_json(request, AskedRole, bytes_max=BODY_BYTES_MAX)
        return await self._answer(self._set_role(asked))

    async def _set_role(self, asked: AskedRole) -> RoleChanged:
        return await self._system.roles.set_role(asked.replica, asked.role)

    async def _answer(self, work: Coroutine[Any, Any, Resized | RoleChanged]) -> web.Response:
        # Who asked may go away; a replica that drains must not be left between two states.
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        try:
            done = await asyncio.shield(task)
        except (RefusedError, RoleRefusedError) as error:
            raise ApiError(409, "invalid_request_error", "refused", str(error)) from error
        except LaunchError as error:
            raise ApiError(503, "server_error", "replica_unchanged", str(error)) from error
        return web.Response(body=msgspec.json.encode(done), content_type="application/json")

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Looked at here too: whoever asked may be gone, and the ledger holds how it ended.
            task.exception()

    async def _carry_out(self, asked: Asked) -> Resized:
        match asked.action:
            case FleetAction.ADD:
                return await self._resizer.add(force=asked.force)
            case FleetAction.REMOVE:
                return await self._resizer.remove(asked.replica, force=asked.force)


async def read_json(request: web.Request, kind: type[T], *, bytes_max: int) -> T:
    """Return the body of an action; raises `ApiError` unless it is JSON, says so, and is as described."""
    if request.content_type != "application/json":
        raise ApiError(415, "invalid_request_error", "not_json", "send application/json")
    if (request.content_length or 0) > bytes_max:
        raise ApiError(413, "invalid_request_error", "too_large", "the body is too large")
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise ApiError(400, "invalid_request_error", "bad_request", str(error)) from error
