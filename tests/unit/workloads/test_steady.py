"""A steady closed loop: so many clients, so many requests each, nothing shared, lengths as asked for."""

import msgspec

from trimtab.workloads.steady import Steady, steady

SHAPE = Steady(concurrency=3, input_tokens=20, output_tokens=7, rounds=2, model="m")


def test_each_client_sends_its_requests_one_after_the_other() -> None:
    """A user is a client, and all begin at once."""
    made = steady(SHAPE)
    users = [request.user for request in made.requests]
    assert users == ["client-0", "client-1", "client-2"] * 2
    assert {request.send_at_s for request in made.requests} == {0.0}


def test_answers_run_to_their_full_length() -> None:
    """The model's own end mark is ignored, else the batch would not stay."""
    for request in steady(SHAPE).requests:
        body = msgspec.json.decode(request.body)
        assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (7, 7, True)
        assert (body["model"], body["stream"]) == ("m", True)


def test_prompts_share_nothing() -> None:
    """No two prompts begin alike, so that no cache helps."""
    prompts = [msgspec.json.decode(each.body)["prompt"] for each in steady(SHAPE).requests]
    assert {len(prompt.split()) for prompt in prompts} == {20}
    assert len({prompt.split()[0] + prompt.split()[1] for prompt in prompts}) == len(prompts)


def test_same_seed_makes_the_same_requests() -> None:
    """Layouts are compared by the same bytes; another round has others."""
    assert steady(SHAPE) == steady(SHAPE)
    other = msgspec.structs.replace(SHAPE, seed=2)
    assert steady(other).requests[0].body != steady(SHAPE).requests[0].body
