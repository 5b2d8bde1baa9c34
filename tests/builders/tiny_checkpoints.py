"""Tiny causal language models with random weights, written as real Hugging Face checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEXT = (
    "The quick brown fox jumps over the lazy dog. A merge of models is a sum of their weights; "
    "how good it is must be measured on items that nobody searched on. Numbers: 1 2 3 4 5 6 7 8 9 10. "
)


def write_tokenizer(folder: Path, *, add_bos: bool = False) -> int:
    """A byte-level BPE tokenizer of about 300 tokens; returns its size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return int(tokenizer.get_vocab_size())


def write_llama(folder: Path, seed: int = 0, *, add_bos: bool = False, **changes: Any) -> Path:
    """A Llama of 2 layers, 32 wide, 4 heads over 2 groups, 48 positions."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    size = write_tokenizer(folder, add_bos=add_bos)
    settings: dict[str, Any] = {
        "vocab_size": size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 48,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **changes}))
    model.to(model.config.dtype or torch.float32).save_pretrained(folder)
    return folder


def write_gpt2(folder: Path, seed: int = 0) -> Path:
    """A GPT-2 of 2 layers: learned positions, tied head, names unlike Llama's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder.mkdir(parents=True)
    size = write_tokenizer(folder)
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=48, bos_token_id=1, eos_token_id=2
    )
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    model.save_pretrained(folder)
    return folder
