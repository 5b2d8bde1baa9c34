"""Small real checkpoints for the engines' tests: Llama architecture, random weights, safetensors in several
shards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<unk>", "<s>", "</s>", *[f"w{i}" for i in range(29)]]


def llama_config(**changes: Any) -> LlamaConfig:
    """A Llama of 3 layers and 16 dimensions over 32 tokens."""
    fields: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return LlamaConfig(**(fields | changes))


def save_model(
    folder: Path,
    seed: int,
    *,
    dtype: torch.dtype = torch.float32,
    near: LlamaForCausalLM | None = None,
    shard: str = "6KB",
    words: list[str] | None = None,
    **config: Any,
) -> LlamaForCausalLM:
    """Save a model with tokenizer; with ``near`` its weights are those plus noise, as a fine-tune's."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(llama_config(**config))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        origin = dict(near.named_parameters()) if near else {}
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.1
            parameter.copy_(origin[name].float() + noise if name in origin else parameter.float() + noise)
    model = model.to(dtype)
    model.save_pretrained(folder, max_shard_size=shard, safe_serialization=True)
    save_tokenizer(folder, words or WORDS)
    return model


def save_tokenizer(folder: Path, words: list[str]) -> None:
    """A word-level tokenizer, with a chat template."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    fast.save_pretrained(folder)


def save_family(folder: Path, *, dtype: torch.dtype = torch.float32, **config: Any) -> dict[str, Path]:
    """A base and two fine-tunes of it: folders by name (base, one, two)."""
    base = save_model(folder / "base", 0, dtype=dtype, **config)
    save_model(folder / "one", 1, dtype=dtype, near=base, **config)
    save_model(folder / "two", 2, dtype=dtype, near=base, **config)
    return {name: folder / name for name in ("base", "one", "two")}
