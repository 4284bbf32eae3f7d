"""A steady closed loop: so many clients at once, each with one request of fixed lengths after the other.

It is what a layout is measured with: the batch is known and stays. Prompts share nothing, so no cache helps, and
answers run to their full length whatever the model says (`ignore_eos`, which vLLM, SGLang and llama.cpp know).
"""

import random
from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.workloads.base import COMPLETIONS_ENDPOINT, PeakShape, PlannedRequest, Workload
from trimtab.workloads.words import WORDS


class Steady(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A closed loop. `input_tokens` is met as far as a word is a token; what the server counts is reported."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000)]
    input_tokens: Annotated[int, Meta(ge=1, le=10_000_000)]
    output_tokens: Annotated[int, Meta(ge=1, le=1_000_000)]
    rounds: Annotated[int, Meta(ge=1, le=10_000)] = 2
    """Requests of each client."""
    model: str = "default"
    seed: Annotated[int, Meta(ge=0)] = 1


def steady(shape: Steady) -> Workload:
    """Return the requests: all clients begin at once, and each sends its next one when the last has ended."""
    rng = random.Random(shape.seed)
    requests: list[PlannedRequest] = []
    for at in range(shape.rounds):
        for client in range(shape.concurrency):
            prompt = " ".join(rng.choices(WORDS, k=shape.input_tokens))
            body = {
                "model": shape.model,
                "prompt": prompt,
                "max_tokens": shape.output_tokens,
                "min_tokens": shape.output_tokens,
                "ignore_eos": True,
                "temperature": 0.0,
                "stream": True,
                "stream_options": {"include_usage": True},
                "seed": shape.seed,
            }
            requests.append(
                PlannedRequest(
                    index=len(requests),
                    session=f"client-{client}-{at}",
                    turn=0,
                    user=f"client-{client}",
                    send_at_s=0.0,
                    endpoint=COMPLETIONS_ENDPOINT,
                    body=msgspec.json.encode(body),
                    label="steady",
                    expected_output_tokens=shape.output_tokens,
                )
            )
    return Workload(
        name="steady",
        seed=shape.seed,
        requests=tuple(requests),
        description=(
            f"{shape.concurrency} clients, {shape.input_tokens} tokens in and {shape.output_tokens} out, "
            f"{shape.rounds} requests each"
        ),
        scale={"input_factor": 1.0, "output_factor": 1.0},
        peak=PeakShape(low=1.0, high=1.0),
    )
