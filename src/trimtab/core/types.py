"""The closed sets that every other module shares. One word per concept; see docs/glossary.md."""

from enum import StrEnum


class Phase(StrEnum):
    """A stretch of a request's life that has its own binding resource."""

    QUEUE = "queue"
    PREFILL = "prefill"
    TRANSFER = "transfer"
    DECODE = "decode"


class Resource(StrEnum):
    """What can bind a phase. The queue is bound by admission: slots, limits, replicas."""

    COMPUTE = "compute"
    MEMORY_CAPACITY = "memory_capacity"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    COMMUNICATION = "communication"
    ADMISSION = "admission"


class Budget(StrEnum):
    """One of the four budgets between which every lever moves pressure."""

    COMPUTE = "compute"
    MEMORY = "memory"
    COMMUNICATION = "communication"
    QUALITY = "quality"


class Technique(StrEnum):
    """The techniques that levers apply."""

    PREFIX_CACHING = "prefix_caching"
    SPECULATION = "speculation"
    QUANTIZATION = "quantization"
    PREFILL_CHUNKING = "prefill_chunking"
    DISAGGREGATION = "disaggregation"
    PARALLEL_LAYOUT = "parallel_layout"
    REPLICAS = "replicas"


class Role(StrEnum):
    """Which phases a replica serves."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


class ReplicaState(StrEnum):
    """Where a replica is in its life. Only `READY` replicas take new requests.

    `EJECTED`: the fleet says it is ready, the gateway leaves it out for a while because its requests failed.
    """

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    EJECTED = "ejected"


class Health(StrEnum):
    """Where a replica stands with those who send it requests. `HALF_OPEN`: it gets a few as trials."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    HALF_OPEN = "half_open"


class HealthReason(StrEnum):
    """Why a replica's standing changed. Closed: a new rule needs a new reason."""

    CONSECUTIVE_FAILURES = "consecutive_failures"
    FAILURE_SHARE = "failure_share"
    TRIAL_FAILED = "trial_failed"
    TIME_IS_OVER = "time_is_over"
    TRIALS_PASSED = "trials_passed"
    CAME_BACK = "came_back"


class FleetAction(StrEnum):
    """What is done to the number of replicas of a fleet that serves."""

    ADD = "add"
    REMOVE = "remove"


class RolloutAction(StrEnum):
    """What a person asks of a lever, or of all promotions."""

    PROPOSE = "propose"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    ROLLBACK = "rollback"
    ADOPT = "adopt"
    DISABLE = "disable"
    VERIFY = "verify"
    SCORE = "score"
    FREEZE = "freeze"
    UNFREEZE = "unfreeze"


class Arm(StrEnum):
    """A side of a comparison."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Mode(StrEnum):
    """What may be started without a person: nothing, proposals, or allowed levers."""

    OBSERVE = "observe"
    ADVISE = "advise"
    ACT = "act"


class Verdict(StrEnum):
    """The answer of a gate. Only `PASS` promotes; `HOLD` is not enough evidence; `ERROR` could not be judged."""

    PASS = "pass"
    FAIL = "fail"
    HOLD = "hold"
    ERROR = "error"


class RolloutState(StrEnum):
    """Where a lever's rollout is."""

    PROPOSED = "proposed"
    CANARY = "canary"
    RAMPING = "ramping"
    PROVING = "proving"
    ADOPTED = "adopted"
    PAUSED = "paused"
    ROLLED_BACK = "rolled_back"
    DISABLED = "disabled"
    EXPIRED = "expired"


class Constraint(StrEnum):
    """What the output of a request must obey."""

    FREE = "free"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"


class ErrorClass(StrEnum):
    """Why a request did not end well."""

    NONE = "none"
    BAD_REQUEST = "bad_request"
    CONTEXT_OVERFLOW = "context_overflow"
    OVERLOADED = "overloaded"
    UPSTREAM_STATUS = "upstream_status"
    UPSTREAM_CONNECT = "upstream_connect"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    STREAM_TRUNCATED = "stream_truncated"
    NO_REPLICA = "no_replica"
    UNAUTHENTICATED = "unauthenticated"
    LIMITED = "limited"
    CLIENT_ABORT = "client_abort"
