"""Where several gateways send a request: to the home of its key, unless the home is over its bound.

Consistent hashing with a bound on load (Mirrokni, Thorup, Zadimoghaddam, 2018). Every key orders all replicas
(rendezvous hashing, which does not depend on which other replicas there are); the first one within the bound gets the
request. Load is what engines tell of themselves, of all gateways' requests, so that gateways with the same readings
decide the same, whatever each of them has in flight. They share no lock and no state but the engines.

A replica is over the bound if its share of KV in use is above both 0.8 and load_bound * mean, or if
    requests on it by its own count > load_bound * mean    and
    (requests - mean) * step_ms_per_stream * output tokens > prefill of the prompt anew
so that a request leaves its home only where staying costs more than computing its prompt elsewhere. Where an engine
does not tell, this gateway's own count stands for it. If all are over, the replica with the fewest requests is taken.

Failure modes: gateways that see different traffic pick different keys; readings of different age let two gateways
disagree about who is over the bound, for the time of a probe.
"""

import numpy as np
import xxhash

from trimtab.core.columns import Flags, FleetColumns, Floats
from trimtab.core.cost import CostModel
from trimtab.core.decision import FleetView, RouteReason, RouteRequest
from trimtab.policies.routing_many import Many, kv_over
from trimtab.policies.routing_outcome import Bounds, Outcome


def homed(view: FleetView, request: RouteRequest, bounds: Bounds) -> Outcome:
    """Choose the first replica in the order of the request's key that is within its bound."""
    many = Many(view, request)
    if not many.eligible:
        return Outcome(winner=None, eligible=0)
    columns = many.columns
    able = many.able.nonzero()[0]
    counts = _counts(columns)[able]
    over = _over(counts, request, bounds)
    by_kv = kv_over(bounds.load_bound, columns.kv, many.able)
    if by_kv is not None:
        over = over | by_kv[able]
    places = columns.session_places(_key_hash(request), able)
    reason = RouteReason.HOME_WITHIN_BOUND
    at = int(places.argmin())
    if over[at]:
        reason = RouteReason.HOME_OVER_BOUND_NEXT
        within = (~over).nonzero()[0]
        if within.size:
            at = int(within[places[within].argmin()])
        else:
            fewest = (counts == counts.min()).nonzero()[0]
            at = int(fewest[places[fewest].argmin()])
    flags = np.zeros(len(columns.ids), dtype=np.bool_)
    flags[able] = over
    return Outcome(winner=int(able[at]), eligible=many.eligible, reason=reason, over=flags)


def _counts(columns: FleetColumns) -> Floats:
    """Return the requests on each replica by its engine's count, by ours where it does not tell."""
    own = columns.running + columns.waiting
    counts: Floats = np.where(np.isnan(columns.reported), own, columns.reported)
    return counts


def _over(counts: Floats, request: RouteRequest, bounds: Bounds) -> Flags:
    cost: CostModel = bounds.cost
    mean = float(counts.mean())
    # The step that others make longer is paid once for each token of the answer.
    per_request = cost.step_ms_per_stream * max(1.0, request.output_tokens_expected)
    anew = cost.prefill_base_ms + cost.prefill_ms_per_token * request.prompt_tokens
    over: Flags = (counts > bounds.load_bound * mean) & ((counts - mean) * per_request > anew)
    return over


def _key_hash(request: RouteRequest) -> int:
    if request.home_key is not None:
        return request.home_key
    key = request.session or request.request_id
    return xxhash.xxh3_64_intdigest(key.encode())
