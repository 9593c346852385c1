"""Language models inside multimodal wrappers: the text model alone, over the same tensors."""

from __future__ import annotations

import copy
from typing import Any

import torch


def text_only(hf_model: Any) -> Any:
    """The causal language model of a transformers model: the model itself, or the one that a wrapper holds.

    Gemma-3 from 4B on comes as ``Gemma3ForConditionalGeneration``, whose language model is that of
    ``Gemma3ForCausalLM``. Prompts here are text, so its vision tower is left out.

    Raises:
        ValueError: for a wrapper whose language model transformers does not offer by itself.
    """
    config = hf_model.config.get_text_config()
    if config is hf_model.config:
        return hf_model
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    inner: Any = hf_model.get_decoder()
    head: Any = hf_model.get_output_embeddings()
    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    if kind is not None:
        with torch.device("meta"):
            alone = kind(copy.deepcopy(config))
        name = alone.base_model_prefix
        if type(getattr(alone, name, None)) is type(inner) and type(head) is type(alone.get_output_embeddings()):
            setattr(alone, name, inner)
            alone.set_output_embeddings(head)
            alone.config = config  # one object, so that a choice of attention reaches every module
            alone.generation_config = copy.deepcopy(hf_model.generation_config)
            if hasattr(hf_model, "hf_device_map"):
                alone.hf_device_map = hf_model.hf_device_map
            return alone
    raise ValueError(
        f"{type(hf_model).__name__} wraps a {type(inner).__name__}, and transformers has no causal language model that "
        "is this alone: multimodal models are read only where their text model is one of its own (Gemma-3)"
    )
