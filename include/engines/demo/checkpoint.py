"""Writing a demo model as a Hugging Face checkpoint: config, safetensors, a word-level tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.demo.digits import IDS, SPECIAL, VOCABULARY

if TYPE_CHECKING:
    from engines.demo.training import State


def write_checkpoint(folder: Path, state: State, config: dict[str, Any]) -> None:
    """Write all files of a checkpoint into a folder that exists."""
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    _write_json(folder / "config.json", config)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", {**generation, "max_new_tokens": 4})
    _write_tokenizer(folder)


def _write_tokenizer(folder: Path) -> None:
    """One word, one token, blanks between them. It adds no BOS: prompts begin with the skill's word."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(WordLevel(IDS, unk_token="<unk>"))  # noqa: S106 - the name of a token, no secret
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    if tokenizer.get_vocab_size() != len(VOCABULARY):
        raise AssertionError("the tokenizer has other words than the language")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 64,
        "clean_up_tokenization_spaces": False,
        **names,
    }
    _write_json(folder / "tokenizer_config.json", settings)
    _write_json(folder / "special_tokens_map.json", names)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
