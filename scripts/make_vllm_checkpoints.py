"""Make the checkpoints that vLLM serves here: SmolLM2 out of its GGUF file, and two models of random weights.

    PYTHON_OF_VLLM scripts/make_vllm_checkpoints.py MODEL.gguf FOLDER

Runs in vLLM's environment (make_vllm_env.py calls it). SmolLM2 is expanded to bfloat16 from the 4-bit file that trimtab
ships, so it answers as that file does and not as the original weights would. The random models divide by two where
SmolLM2's 9 heads do not: good for layouts, meaningless for quality.
"""

import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

SEED = 0
HIDDEN = 512
HEADS = 8
KV_HEADS = 4
LLAMA_LAYERS = 8
MOE_LAYERS = 6
EXPERTS = 8
EXPERTS_PER_TOKEN = 2
EXPERT_WIDTH = 512
WIDTH = 1536
CONTEXT_TOKENS = 8192


def main() -> None:
    """Make all of them."""
    gguf, folder = Path(sys.argv[1]), Path(sys.argv[2])
    transformers.utils.logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    whole = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    made = {
        "smollm2": whole,
        "made-llama": random_llama(tokenizer),
        "made-moe": random_moe(tokenizer),
    }
    for name, model in made.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        print(name, sum(weight.numel() for weight in model.parameters()), "parameters")


def random_llama(tokenizer: transformers.PreTrainedTokenizerBase) -> torch.nn.Module:
    """Return a dense model whose heads and layers divide by two."""
    torch.manual_seed(SEED)
    config = transformers.LlamaConfig(
        num_hidden_layers=LLAMA_LAYERS, intermediate_size=WIDTH, **shared(tokenizer)
    )
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def random_moe(tokenizer: transformers.PreTrainedTokenizerBase) -> torch.nn.Module:
    """Return a mixture of experts; every layer routes."""
    torch.manual_seed(SEED)
    config = transformers.Qwen3MoeConfig(
        num_hidden_layers=MOE_LAYERS,
        head_dim=HIDDEN // HEADS,
        intermediate_size=WIDTH,
        moe_intermediate_size=EXPERT_WIDTH,
        num_experts=EXPERTS,
        num_experts_per_tok=EXPERTS_PER_TOKEN,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        **shared(tokenizer),
    )
    return transformers.Qwen3MoeForCausalLM(config).to(torch.bfloat16)


def shared(tokenizer: transformers.PreTrainedTokenizerBase) -> dict[str, object]:
    """Return what both random models have in common; they share SmolLM2's tokens."""
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT_TOKENS,
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


if __name__ == "__main__":
    main()
