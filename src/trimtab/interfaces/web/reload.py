"""The route that reads the configuration again: `POST /fleet/reload`, for loopback or the admin token."""

from collections.abc import Iterable
from typing import Final

import msgspec
from aiohttp import web

from trimtab.core.config import ConfigError
from trimtab.core.ports import LaunchError
from trimtab.runtime.reload import Reloader
from trimtab.runtime.supervisor import System
from trimtab.runtime.wire import ApiError

PATH: Final = "/fleet/reload"


def reload_routes(system: System, reloader: Reloader) -> Iterable[web.AbstractRouteDef]:
    """Return the route. `system` may still be being built: it is first used by a request."""

    async def reload(request: web.Request) -> web.Response:
        system.gateway.check_admin(request)
        # A page of another site cannot send JSON to loopback without asking first.
        if request.content_type != "application/json":
            raise ApiError(415, "invalid_request_error", "not_json", "send application/json")
        try:
            done = reloader.reload()
        except (ConfigError, LaunchError) as error:
            raise ApiError(409, "invalid_request_error", "refused", str(error)) from error
        return web.Response(body=msgspec.json.encode(done), content_type="application/json")

    return (web.post(PATH, reload),)
