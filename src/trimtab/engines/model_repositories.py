"""Under which owner the makers of well-known models publish them at Hugging Face, for names that are given without one.

A name is compared without case. A name that leaves the variant open (`gemma-3-27b`) stands for one of several
repositories of one shape; `VARIANTS` says which is taken, and who takes it should say so.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

_REPOSITORIES: Final = (
    "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-13b-hf", "meta-llama/Llama-2-70b-hf",
    "meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-13b-chat-hf", "meta-llama/Llama-2-70b-chat-hf",
    "meta-llama/Meta-Llama-3-8B", "meta-llama/Meta-Llama-3-8B-Instruct",
    "meta-llama/Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct",
    "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Llama-3.1-70B", "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Llama-3.1-405B", "meta-llama/Llama-3.1-405B-Instruct", "meta-llama/Llama-3.1-405B-Instruct-FP8",
    "meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B-Instruct",
    "meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct", "meta-llama/Llama-3.3-70B-Instruct",
    "Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-14B",
    "Qwen/Qwen2.5-32B", "Qwen/Qwen2.5-72B", "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct",
    "Qwen/Qwen2.5-3B-Instruct", "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-14B-Instruct",
    "Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-7B-Instruct-AWQ",
    "Qwen/Qwen2.5-32B-Instruct-AWQ", "Qwen/Qwen2.5-72B-Instruct-AWQ", "Qwen/QwQ-32B",
    "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B",
    "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B", "Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-14B-FP8", "Qwen/Qwen3-32B-FP8",
    "Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-32B-AWQ",
    "Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen/Qwen3-30B-A3B-Thinking-2507",
    "Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B-Thinking-2507",
    "Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking", "Qwen/Qwen3.5-397B-A17B",
    "MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.1", "MiniMaxAI/MiniMax-M2.5", "MiniMaxAI/MiniMax-M2.7",
    "zai-org/GLM-4.5-Air", "zai-org/GLM-5", "zai-org/GLM-5.1", "zai-org/GLM-5-FP8", "zai-org/GLM-5.1-FP8",
    "mistralai/Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.1",
    "mistralai/Mistral-7B-Instruct-v0.2", "mistralai/Mistral-7B-Instruct-v0.3",
    "mistralai/Mistral-Nemo-Base-2407", "mistralai/Mistral-Nemo-Instruct-2407",
    "mistralai/Mistral-Small-24B-Base-2501", "mistralai/Mistral-Small-24B-Instruct-2501",
    "mistralai/Mixtral-8x7B-v0.1", "mistralai/Mixtral-8x7B-Instruct-v0.1",
    "mistralai/Mixtral-8x22B-v0.1", "mistralai/Mixtral-8x22B-Instruct-v0.1",
    "google/gemma-2-2b", "google/gemma-2-9b", "google/gemma-2-27b",
    "google/gemma-2-2b-it", "google/gemma-2-9b-it", "google/gemma-2-27b-it",
    "google/gemma-3-1b-it", "google/gemma-3-4b-it", "google/gemma-3-12b-it", "google/gemma-3-27b-it",
    "google/gemma-3-1b-pt", "google/gemma-3-4b-pt", "google/gemma-3-12b-pt", "google/gemma-3-27b-pt",
    "deepseek-ai/DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-ai/DeepSeek-V3",
    "deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3.1", "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
    "openai/gpt-oss-20b", "openai/gpt-oss-120b", "moonshotai/Kimi-K2-Instruct", "microsoft/phi-4",
    "HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-360M", "HuggingFaceTB/SmolLM2-1.7B",
    "HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct",
    "HuggingFaceTB/SmolLM2-1.7B-Instruct", "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
)  # fmt: skip

VARIANTS: Final[Mapping[str, str]] = {
    "llama-2-7b": "Llama-2-7b-hf",
    "llama-2-13b": "Llama-2-13b-hf",
    "llama-2-70b": "Llama-2-70b-hf",
    "llama-3-8b": "Meta-Llama-3-8B",
    "llama-3-70b": "Meta-Llama-3-70B",
    "llama-3.3-70b": "Llama-3.3-70B-Instruct",
    "qwen3-coder-30b-a3b": "Qwen3-Coder-30B-A3B-Instruct",
    "qwen3-coder-480b-a35b": "Qwen3-Coder-480B-A35B-Instruct",
    "qwen3-next-80b-a3b": "Qwen3-Next-80B-A3B-Instruct",
    "mistral-7b-v0.2": "Mistral-7B-Instruct-v0.2",
    "mistral-nemo-2407": "Mistral-Nemo-Instruct-2407",
    "mistral-small-24b-2501": "Mistral-Small-24B-Instruct-2501",
    "mixtral-8x7b": "Mixtral-8x7B-v0.1",
    "mixtral-8x22b": "Mixtral-8x22B-v0.1",
    "gemma-3-1b": "gemma-3-1b-it",
    "gemma-3-4b": "gemma-3-4b-it",
    "gemma-3-12b": "gemma-3-12b-it",
    "gemma-3-27b": "gemma-3-27b-it",
    "kimi-k2": "Kimi-K2-Instruct",
    "tinyllama-1.1b": "TinyLlama-1.1B-Chat-v1.0",
    "tinyllama-1.1b-v1.0": "TinyLlama-1.1B-Chat-v1.0",
}
"""Names of the table of shapes that are no repository's, and the repository that is taken for each."""

_BY_NAME: Final = {each.rpartition("/")[2].lower(): each for each in _REPOSITORIES}


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model is published. `exact`: the name is the repository's own, and not one of several that share it."""

    name: str
    exact: bool


def find_repository(name: str) -> Repository | None:
    """Return the repository of a model's name; None where the owner is not known. A name with an owner is its own."""
    plain = name.strip("/")
    if "/" in plain:
        return Repository(name=plain, exact=True)
    exact = _BY_NAME.get(plain.lower())
    if exact is not None:
        return Repository(name=exact, exact=True)
    variant = VARIANTS.get(plain.lower())
    return None if variant is None else Repository(name=_BY_NAME[variant.lower()], exact=False)
