"""Routers with an index and a load of their own, and what they are asked, for tests of live routing."""

import random

from routing_kit import COST

from trimtab.core.ports import RequestFacts
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.prefix_key import PrefixScope
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Constraint, ReplicaState, Role
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import RouteQuery, Router
from trimtab.policies.routing import build_policies

HASHER = BlockHasher(b"k", 10)
PROMPT = bytes(range(250)) * 4


def router(*replicas: str, policy: str = "prefix_affine", slots: int = 8) -> Router:
    load = LoadState()
    for name in replicas:
        load.set_replica(
            id=name,
            url=f"http://{name}",
            role=Role.MIXED,
            revision="v",
            state=ReplicaState.READY,
            slots=slots,
        )
    made = Router(
        load,
        PrefixIndex(100_000, 10),
        build_policies(COST),
        random.Random(1),
        plan=TrafficPlan(policy=policy),
    )
    made.ratio.bytes_per_token = 1.0
    return made


def query(
    request_id: str,
    prompt: bytes = PROMPT,
    *,
    session: str = "s",
    salt: str = "",
    ids: tuple[int, ...] = (),
) -> RouteQuery:
    scope = PrefixScope(salt=salt)
    text = prompt.decode("latin-1") if not ids else " ".join(map(str, ids))
    return RouteQuery(
        request_id=request_id,
        facts=RequestFacts(
            model=None,
            stream=True,
            wants_usage=True,
            temperature=0.0,
            max_tokens=50,
            constraint=Constraint.FREE,
            segments=(("prompt_ids" if ids else "prompt", text),),
        ),
        blocks=HASHER.blocks(prompt, scope.space),
        prompt_size=len(prompt),
        session=session,
        label=None,
        repetition=None,
        now_s=1.0,
        key_class=scope.key_class,
        salt=salt,
    )


def hold(made: Router, replica: str, prompt: bytes, *, salt: str = "") -> None:
    """Let a replica have served a prompt."""
    blocks = HASHER.blocks(prompt, PrefixScope(salt=salt).space)
    made.index.record(replica, blocks)
    made.index.finished(replica, blocks)
