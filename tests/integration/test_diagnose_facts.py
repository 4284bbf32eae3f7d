"""Routing, caching across tenants and parallel layouts, judged from facts alone or beside a page, through the command.

Each case comes with other numbers and with a needed fact missing.
"""

import json
from pathlib import Path

import pytest
from scrape_kit import Load, Told, diagnose, facts, invoke, judgement, sglang, vllm

PLACE = "where the next request should go"
BALANCE = "balance of the servers"
CACHE = "prefix hits by source"
SALT = "router keys of salted requests"
TENANTS = "isolation of tenants"
SIZE = "tensor parallel degree"
HEADS = "heads over ranks"
EXPERTS = "expert parallel"


def judged(folder: Path, text: str, *options: str) -> Told:
    """Judge facts without any source."""
    ran = invoke(*facts(folder, text), *options, "--json")
    assert ran.stdout.startswith("{"), ran.output
    return Told(ran.exit_code, json.loads(ran.stdout), ran.stdout)


def test_facts_alone_are_judged_and_nothing_else_is_claimed(tmp_path: Path) -> None:
    """Without a source there is no reading: no binding, exit code 4."""
    told = judged(tmp_path, "[layout]\naccelerators = 8\nfits_on = 2\ngoal = 'throughput'\n")
    assert (told.code, told.binding, told.answer["sources"]) == (4, None, [])
    assert len(told.answer["judgements"]) == 1


def replicas(*rows: tuple[str, float | None, float | None, float]) -> str:
    """Facts of servers: name, KV share, waiting requests, matched part of the prompt."""
    text = ""
    for name, kv, waiting, match in rows:
        text += f'[[balance.replicas]]\nname = "{name}"\nmatch_share = {match}\n'
        text += "" if kv is None else f"kv_used_share = {kv}\n"
        text += "" if waiting is None else f"waiting = {waiting}\n"
    return text


@pytest.mark.parametrize(
    ("rows", "choice"),
    [
        ((("A", 0.97, 9, 0.9), ("B", 0.40, 0, 0.6), ("C", 0.35, 0, 0.0)), "B"),
        ((("A", 0.41, 0, 0.9), ("B", 0.40, 0, 0.6), ("C", 0.39, 0, 0.0)), "A"),
        ((("A", 0.2, 30, 0.0), ("B", 0.2, 0, 0.0)), "B"),
        ((("A", 0.95, 40, 1.0), ("B", 0.5, 2, 0.3), ("C", 0.45, 1, 0.5)), "C"),
        ((("A", None, None, 0.9), ("B", 0.4, 0, 0.6)), ""),
    ],
    ids=["hot spot", "balanced", "no match", "other numbers", "load unknown"],
)
def test_load_is_bounded_before_the_longest_prefix_wins(
    tmp_path: Path, rows: tuple[tuple[str, float | None, float | None, float], ...], choice: str
) -> None:
    """The longest match within the bound, else the least load; a load that nobody tells is not idle."""
    found = judgement(judged(tmp_path, replicas(*rows)), PLACE)
    assert found["choice"] == choice
    assert (found["answer"] is None) == (choice == "")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("routers = 4\nseen_gap = 20\ntrue_gap = 80\nthreshold = 64\n", "imbalanced"),
        ("routers = 2\nseen_gap = 10\ntrue_gap = 20\nthreshold = 16\n", "imbalanced"),
        ("routers = 4\nseen_gap = 5\ntrue_gap = 20\nthreshold = 64\n", "balanced"),
        ("routers = 4\nseen_gap = 20\nthreshold = 64\n", None),
    ],
)
def test_balance_is_judged_by_the_engines_and_not_by_one_router(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Each of four routers sees a quarter of the gap."""
    assert judgement(judged(tmp_path, f"[balance]\n{text}"), BALANCE)["answer"] == answer


@pytest.mark.parametrize(
    ("page", "proxy", "answer"),
    [
        (vllm(Load(running=1, queries=1e6, hits=0)), 0.95, "trust the engine"),
        (vllm(Load(running=1, queries=1e6, hits=1e5)), 0.6, "trust the engine"),
        (sglang(Load(running=1, prompt_tokens=1e6, hits=0)), 0.95, "trust the engine"),
        (vllm(Load(running=1, queries=1e6, hits=9e5)), 0.95, "sources agree"),
        (vllm(Load(running=1)), 0.95, None),
    ],
    ids=["zero", "other numbers", "sglang", "agree", "not counted"],
)
def test_hits_that_a_proxy_counts_are_held_against_the_engine(
    tmp_path: Path, page: str, proxy: float, answer: str | None
) -> None:
    """95% at the proxy and none at the engine is a conflict, and the engine did the work."""
    told = diagnose(
        tmp_path, page, options=facts(tmp_path, f"[cache]\nproxy_hit_share = {proxy}\n")
    )
    assert judgement(told, CACHE)["answer"] == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("salted_predicted_share = 0.0\nsalted_engine_share = 0.7\n", "router key mismatch"),
        ("salted_predicted_share = 0.1\nsalted_engine_share = 0.5\n", "router key mismatch"),
        ("salted_predicted_share = 0.68\nsalted_engine_share = 0.7\n", "keys match"),
        ("salted_predicted_share = 0.0\n", None),
    ],
)
def test_router_that_never_predicts_hits_of_salted_requests_has_other_keys(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """No claim about caching follows from a key that differs."""
    assert judgement(judged(tmp_path, f"[cache]\n{text}"), SALT)["answer"] == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("enabled = false\nsame_tenant_hit = false\nother_tenant_hit = false\n", "not proven"),
        ("enabled = true\nsame_tenant_hit = true\nother_tenant_hit = false\n", "proven"),
        ("enabled = true\nsame_tenant_hit = true\nother_tenant_hit = true\n", "broken"),
        ("enabled = true\nother_tenant_hit = false\n", None),
    ],
)
def test_isolation_is_proven_only_where_the_cache_works(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """With caching off nothing hits, which proves nothing."""
    assert judgement(judged(tmp_path, f"[cache]\n{text}"), TENANTS)["answer"] == answer


MEASURED = (
    "measured = [{tensor_parallel = 4, tpot_ms = 20}, {tensor_parallel = 8, tpot_ms = 15.9}]\n"
)


@pytest.mark.parametrize(
    ("text", "answer", "choice"),
    [
        ('accelerators = 8\nlink = "nvlink"\nfits_on = 2\ngoal = "throughput"\ntpot_ms_target = 40\n',
         "replicas of a smaller layout", "4 replicas of TP2"),
        ('accelerators = 4\nlink = "nvlink"\nfits_on = 1\ngoal = "throughput"\n',
         "replicas of a smaller layout", "4 replicas of TP1"),
        (f'accelerators = 8\nlink = "nvlink"\nfits_on = 2\ngoal = "latency"\ntpot_ms_target = 17\n{MEASURED}',
         "tensor parallel", "TP8"),
        ('accelerators = 2\nlink = "pcie without peer access"\nfits_on = 1\ngoal = "latency"\n',
         "no tensor parallel", "2 replicas of TP1"),
        ('accelerators = 8\nlink = "nvlink"\ngoal = "throughput"\n', None, ""),
    ],
    ids=["throughput", "other numbers", "latency", "no peer access", "fit unknown"],
)  # fmt: skip
def test_layout_follows_fit_link_and_goal(
    tmp_path: Path, text: str, answer: str | None, choice: str
) -> None:
    """Replicas of the smallest that fits for throughput; more ranks for fit or single streams, and by link."""
    found = judgement(judged(tmp_path, f"[layout]\n{text}"), SIZE)
    assert (found["answer"], found["choice"]) == (answer, choice)


@pytest.mark.parametrize(
    ("text", "answer", "choice"),
    [
        ("heads = 28\nkv_heads = 4\naccelerators = 8\n", "divides the heads", "TP4 x 2"),
        ("heads = 52\ntensor_parallel = 3\n", "reject", "2, 4"),
        ("heads = 40\ntensor_parallel = 6\n", "reject", "5, 8"),
        (
            "heads = 64\nkv_heads = 8\ntensor_parallel = 16\ntensor_parallel_now = 8\n",
            "saves no KV",
            "",
        ),
        ("latent_attention = true\ntensor_parallel = 8\n", "attention data-parallel", ""),
        ("tensor_parallel = 3\n", None, ""),
    ],
    ids=["28 heads", "52 heads", "40 heads", "beyond KV heads", "latent", "heads unknown"],
)
def test_heads_decide_the_sizes_of_a_layout(
    tmp_path: Path, text: str, answer: str | None, choice: str
) -> None:
    """Sizes divide the heads; beyond the KV heads no KV is saved; a latent KV is copied to every rank."""
    found = judgement(judged(tmp_path, f"[layout]\n{text}"), HEADS)
    assert (found["answer"], found["choice"]) == (answer, choice)


def test_heads_are_read_from_the_model(tmp_path: Path) -> None:
    """A config.json tells the heads that the facts leave out."""
    config = {
        "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28,
        "num_key_value_heads": 4, "intermediate_size": 18944, "vocab_size": 152064,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = judged(tmp_path, "[layout]\ntensor_parallel = 8\n", "--model", str(tmp_path))
    assert judgement(told, HEADS)["answer"] == "reject"


SPREAD = 'exchange = "all-to-all"\nexpert_load_max_over_mean = {}\n'
WIDE = "experts = 256\nexperts_per_token = 8\ntokens_per_step = 4000\naccelerators = 16\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "experts = 8\nexperts_per_token = 2\ntokens_per_step = 16\naccelerators = 8\n",
            "tensor parallel",
        ),
        (
            "experts = 64\nexperts_per_token = 4\ntokens_per_step = 100\naccelerators = 8\n",
            "tensor parallel",
        ),
        (WIDE + SPREAD.format(1.2), "candidate for a canary"),
        (WIDE + SPREAD.format(3.5), "balance the experts first"),
        (WIDE + 'exchange = "all-reduce"\n', "no communication saved"),
        (WIDE + 'exchange = "all-to-all"\n', None),
    ],
    ids=["small", "other numbers", "wide", "skewed", "all-reduce", "skew unknown"],
)
def test_experts_are_spread_only_for_large_steps_and_even_load(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Tokens per step, experts, a real all-to-all, and the load of the busiest rank."""
    assert judgement(judged(tmp_path, f"[layout]\n{text}"), EXPERTS)["answer"] == answer
