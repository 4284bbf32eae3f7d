"""`POST /debug/route`: what would the gateway do with this body? Nothing is sent, counted or remembered.

The body is what a client would send to /v1/chat/completions or, with `?path=/v1/completions`, there; the headers of
session and label count as they would. `?salt=` asks for a tenant whose cache has that salt, without its key. The answer
has token counts, loads and milliseconds, no text.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from aiohttp import web

from trimtab.core.decision import Candidate, RouteReason
from trimtab.core.ports import Clock, EngineFormat, EngineFormatError
from trimtab.core.prefix import BlockHasher
from trimtab.core.prefix_trust import KeyStanding
from trimtab.core.types import Arm
from trimtab.policies.router import RouteQuery, Router
from trimtab.runtime.prompt import label_of, read_prompt, repetition_of, scope_of, session_of
from trimtab.runtime.secret import Secret
from trimtab.runtime.wire import LABEL_HEADER, SESSION_HEADER, ApiError

ROUTE: Final = "/debug/route"
PATHS: Final = ("/v1/chat/completions", "/v1/completions")


class WouldRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What would become of a request, and why. Times in milliseconds, `terms` sum to `score_ms`, the least wins.

    `candidates`: every replica, the winner's among them, or of a large fleet those that matter most (`omitted` says how
    many are left out). `kv_exact`: replicas whose held tokens come from their own KV events.
    """

    policy: str
    replica: str | None
    reason: RouteReason
    arm: Arm
    lever: str | None
    prompt_tokens: int
    output_tokens_expected: int
    prefix_blocks: int
    key_class: str
    key_standing: KeyStanding
    hot_tokens: int
    predicted_cached_tokens: int
    held_best_tokens: int
    candidates: tuple[Candidate, ...]
    omitted: int
    kv_exact: tuple[str, ...]


class DebugRoute:
    """The page. `check_admin` is asked first; it raises `ApiError` for who may not see it."""

    def __init__(
        self,
        router: Router,
        engine: EngineFormat,
        clock: Clock,
        hasher: BlockHasher,
        secret: Secret,
        models: Callable[[], tuple[str, ...]],
        check_admin: Callable[[web.Request], None],
    ) -> None:
        self._router = router
        self._engine = engine
        self._clock = clock
        self._hasher = hasher
        self._secret = secret
        self._models = models
        self._check_admin = check_admin

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to add to the gateway's pages."""
        return [web.post(ROUTE, self.answer)]

    async def answer(self, request: web.Request) -> web.Response:
        """Answer one question; 400 for a body that would be refused, 404 for a path that is not routed by prefix."""
        self._check_admin(request)
        path = request.query.get("path", PATHS[0])
        if path not in PATHS:
            raise ApiError(
                404, "invalid_request_error", "not_found", f"path must be one of {', '.join(PATHS)}"
            )
        body = await request.read()
        said = self.would(
            path,
            body,
            session=request.headers.get(SESSION_HEADER),
            label=label_of(request.headers.get(LABEL_HEADER)),
            salt=request.query.get("salt"),
        )
        return web.Response(body=msgspec.json.encode(said), content_type="application/json")

    def would(
        self, path: str, body: bytes, *, session: str | None, label: str | None, salt: str | None
    ) -> WouldRoute:
        """Return what would become of a body; raises `ApiError` for one that is not understood."""
        try:
            facts = self._engine.read_request(path, body)
        except EngineFormatError as error:
            raise ApiError(400, "invalid_request_error", "bad_request", str(error)) from error
        scope = scope_of(facts, self._models(), salt)
        prompt = read_prompt(facts.segments, self._secret)
        query = RouteQuery(
            request_id="debug",
            facts=facts,
            blocks=self._hasher.blocks(prompt.data, scope.space),
            key_class=scope.key_class,
            salt=scope.salt,
            prompt_size=len(prompt.data),
            session=session_of(session or facts.user, prompt, self._secret, salt=scope.salt),
            label=label,
            repetition=repetition_of(prompt.data),
            now_s=self._clock.mono_s(),
        )
        routed, why = self._router.preview(query)
        decision, asked = why.decision, why.asked
        return WouldRoute(
            policy=decision.policy,
            replica=decision.replica,
            reason=decision.reason,
            arm=routed.exposure.arm,
            lever=routed.exposure.lever,
            prompt_tokens=asked.prompt_tokens,
            output_tokens_expected=asked.output_tokens_expected,
            prefix_blocks=len(query.blocks),
            key_class=query.key_class,
            key_standing=self._router.key_trust.of(query.key_class),
            hot_tokens=asked.hot_tokens,
            predicted_cached_tokens=decision.predicted_cached_tokens,
            held_best_tokens=decision.held_best_tokens,
            candidates=decision.candidates,
            omitted=decision.omitted,
            kv_exact=self._router.kv_exact(),
        )
