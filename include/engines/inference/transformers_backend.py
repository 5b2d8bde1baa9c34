# ruff: noqa: TID253 - computes with torch; imported only through open_backend
"""TransformersBackend: any ``AutoModelForCausalLM`` checkpoint, on CPU or GPU."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from engines.contract import BadInputError
from engines.inference.backend import BackendOptions, Generation
from engines.inference.causal import CausalBackend, Decoding, resolve_device, resolve_dtype
from engines.inference.checkpoints import check_state, read_config
from engines.inference.tokens import TextCodec, load_auto_codec
from engines.tensor.layout import read_layout


class TransformersBackend(CausalBackend):
    """The reference backend.

    ``folder`` gives the tokenizer, and config and weights unless ``config`` and ``state`` do.
    """

    name = "transformers"

    def __init__(
        self,
        folder: Path,
        options: BackendOptions,
        *,
        state: Mapping[str, torch.Tensor] | None = None,
        config: Mapping[str, Any] | None = None,
        codec: TextCodec | None = None,
    ) -> None:
        import transformers

        config = read_config(folder) if config is None else config
        device = resolve_device(options.device)
        dtype = resolve_dtype(options.dtype, config.get("dtype") or config.get("torch_dtype"))
        self._version = transformers.__version__
        self.model = _load(folder, dtype) if state is None else _build(folder, dtype, config)
        self.model.to(device).eval()
        super().__init__(codec or load_auto_codec(folder), options, device, _longest(self.model.config))
        self._cuts = True
        known = inspect.signature(self.model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"
        if state is not None:
            self.load_state(state)

    @property
    def dtype(self) -> torch.dtype:
        """See CausalBackend."""
        return self.model.dtype  # type: ignore[no-any-return]

    def parameters(self) -> int:
        """See CausalBackend."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def identity(self) -> dict[str, Any]:
        """See CausalBackend."""
        return {**super().identity(), "transformers": self._version}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See InferenceBackend. Tensors are copied into the module, cast to its type."""
        wanted = {name: tensor.shape for name, tensor in self.model.state_dict().items()}
        tied = frozenset(getattr(self.model, "_tied_weights_keys", None) or ())
        check_state(state, wanted, tied if self.model.config.tie_word_embeddings else frozenset())
        self.model.load_state_dict(dict(state), strict=False)
        self.model.tie_weights()

    def _logits(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> torch.Tensor:
        given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        if self._cuts:
            try:
                return self.model(**given, logits_to_keep=keep).logits[:, -keep:]  # type: ignore[no-any-return]
            except TypeError:  # an architecture whose forward has no such argument
                self._cuts = False
        return self.model(**given).logits[:, -keep:]  # type: ignore[no-any-return]

    @torch.inference_mode()
    def _generate(self, requests: Sequence[Generation]) -> list[str]:
        """Decode with the model's own cache of keys and values; padded on the left, positions given."""
        decoding = Decoding(requests, self.codec, self.max_length)
        rows = [row[-self.max_length :] for row in decoding.tokens]
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), self.codec.pad, dtype=torch.long)
        mask = torch.zeros((len(rows), width), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, width - len(row) :] = torch.tensor(row)
            mask[number, width - len(row) :] = 1
        ids, mask, cache = ids.to(self.device), mask.to(self.device), None
        while decoding.open:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            answer = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self._cache_name: cache},
            )
            cache = answer.past_key_values
            decoding.extend(answer.logits[decoding.open, -1].float().cpu())
            ids = torch.tensor([[row[-1]] for row in decoding.tokens], device=self.device)
            mask = torch.cat([mask, mask.new_ones((len(rows), 1))], dim=1)
        return decoding.texts()


def _load(folder: Path, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    read_layout(folder)  # its messages name file and tensor; transformers' do not
    try:
        loader: Any = AutoModelForCausalLM
        model, info = loader.from_pretrained(
            str(folder), dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (
        Exception
    ) as error:  # transformers and safetensors raise many kinds for a checkpoint that does not load
        raise _broken(folder, error) from error
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        # transformers would go on with random numbers in their place.
        raise BadInputError(
            f"{folder}: {len(missing)} tensor(s) are missing, first {missing[0]}",
            file=str(folder),
            field="model",
        )
    return model


def _build(folder: Path, dtype: torch.dtype, config: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        given = {key: value for key, value in config.items() if key != "model_type"}
        builder: Any = AutoModelForCausalLM
        return builder.from_config(AutoConfig.for_model(config["model_type"], **given), dtype=dtype)
    except Exception as error:  # as above
        raise _broken(folder, error) from error


def _broken(folder: Path, error: Exception) -> BadInputError:
    message = " ".join(str(error).split())[:300]
    return BadInputError(f"{folder} does not load: {message}", file=str(folder), field="model")


def _longest(config: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "seq_length"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    return 2048
