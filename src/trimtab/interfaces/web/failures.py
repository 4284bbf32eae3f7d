"""`GET /debug/failures`: why requests could not be sent, told from the requests that are kept in memory."""

from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from trimtab.policies.idle_failures import explain_failures
from trimtab.runtime.supervisor import System

PATH: Final = "/debug/failures"


def failure_routes(system: System) -> Iterable[web.AbstractRouteDef]:
    """Return the route. `system` may still be being built: it is first used by a request."""

    async def failures(request: web.Request) -> web.Response:
        system.gateway.check_admin(request)
        said = explain_failures(system.records)
        return web.Response(body=msgspec.json.encode(said), content_type="application/json")

    return (web.get(PATH, failures),)
