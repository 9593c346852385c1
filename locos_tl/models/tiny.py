"""Tiny random models of each architecture family, for checks and tests that need no download.

Nothing is left at its default, and norm weights and biases are random too: at ones and zeros they would hide most
faults. Their answers mean nothing; what must hold of any model holds of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo3Config,
    Phi3Config,
    PhiConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from ..progress import progress_bar

if TYPE_CHECKING:
    from .check import CheckReport
    from .hooked import HookedModel

D_VOCAB = 96


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word, spaces decoded between words."""
    words = ["<unk>", "<eos>", "<pad>", "Yuki", "Omar", "Anna", "Lee", "the", "character", "is", ".", "\n"]
    vocab = {word: i for i, word in enumerate([*words, *(f"w{i}" for i in range(D_VOCAB - len(words)))])}
    backend = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    backend.decoder = decoders.Fuse()
    backend.decoder = decoders.Sequence([decoders.Replace(" ", ""), _spaced()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        eos_token="<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
    )


def _spaced() -> Any:
    return decoders.WordPiece(prefix="##", cleanup=False)


_COMMON = {
    "vocab_size": D_VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "bos_token_id": None,
}

_NO_D_HEAD = {name: value for name, value in _COMMON.items() if name != "head_dim"}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _gemma3_with_vision() -> Any:
    text: dict[str, Any] = {**_COMMON, "num_key_value_heads": 1, "num_hidden_layers": 2, "sliding_window": 8}
    text |= {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]}
    vision = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    tokens = {"image_token_index": D_VOCAB - 1, "boi_token_index": D_VOCAB - 2, "eoi_token_index": D_VOCAB - 3}
    return Gemma3Config(
        text_config=text,
        vision_config=vision | {"image_size": 16, "patch_size": 8},
        mm_tokens_per_image=4,
        eos_token_id=1,
        **tokens,
    )


CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_COMMON, num_hidden_layers=2),
    "llama-6-heads": lambda: LlamaConfig(**{**_COMMON, "num_attention_heads": 6}, num_hidden_layers=2),
    "llama-square": lambda: LlamaConfig(
        **{**_COMMON, "num_attention_heads": 3, "num_key_value_heads": 3}, num_hidden_layers=2
    ),
    "llama3": lambda: LlamaConfig(**_COMMON, num_hidden_layers=2, rope_parameters=_LLAMA3_ROPE),
    "qwen2": lambda: Qwen2Config(**_NO_D_HEAD, num_hidden_layers=2),
    "qwen3": lambda: Qwen3Config(**_COMMON, num_hidden_layers=2),
    "qwen3-moe": lambda: Qwen3MoeConfig(
        **_COMMON, num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
    "mistral": lambda: MistralConfig(**_COMMON, num_hidden_layers=2, sliding_window=8),
    "gemma2": lambda: Gemma2Config(
        **_COMMON,
        num_hidden_layers=2,
        sliding_window=8,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0,
        query_pre_attn_scalar=16,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **{**_COMMON, "num_key_value_heads": 1}, num_hidden_layers=6, sliding_window=8, query_pre_attn_scalar=16
    ),
    "gemma3-multimodal": _gemma3_with_vision,
    "olmo3": lambda: Olmo3Config(**_COMMON, num_hidden_layers=4, sliding_window=8),
    "gpt2": lambda: GPT2Config(
        vocab_size=D_VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=256, eos_token_id=1, bos_token_id=1
    ),
    "gpt-neox": lambda: GPTNeoXConfig(
        **_NO_D_HEAD | {"num_key_value_heads": 4}, num_hidden_layers=2, rotary_pct=0.5, use_parallel_residual=True
    ),
    "phi": lambda: PhiConfig(**_NO_D_HEAD | {"num_key_value_heads": 4}, num_hidden_layers=2, partial_rotary_factor=0.5),
    "phi3": lambda: Phi3Config(**_NO_D_HEAD, num_hidden_layers=2, sliding_window=8),
}
FAMILIES = tuple(CONFIGS)
SLIDING = ("mistral", "gemma2", "gemma3", "gemma3-multimodal", "olmo3", "phi3")


def hf_model(family: str, seed: int = 0) -> Any:
    """A transformers model with every parameter random, in float32."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family](), dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                scale = 1.0 if "proj" in name or "c_attn" in name else 0.3
                parameter.add_(torch.randn_like(parameter) * scale)
            else:
                parameter.copy_(torch.randn_like(parameter) * (0.5 if "embed" in name or "wte" in name else 0.15))
    return model


def word_ids(n: int, seed: int = 0) -> list[int]:
    """n ordinary word tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(12, D_VOCAB, (n,), generator=generator).tolist()


def load(family: str, **options: Any) -> HookedModel:
    """A tiny model of a family, hooked like any other.

    Args:
        family: one of `FAMILIES`.
        options: of `load_model`.

    Raises:
        ValueError: for an unknown family.
    """
    from ..choices import unknown
    from .load import load_model

    if family not in CONFIGS:
        raise ValueError(unknown("family", family, FAMILIES))
    with torch.inference_mode(False):  # weights made under inference mode could never carry a gradient
        return load_model(hf_model(family), tokenizer=tokenizer(), **options)


def check_families(
    families: Sequence[str] = FAMILIES, *, length: int | None = None, progress: bool | None = None
) -> dict[str, CheckReport]:
    """The checks of `check_model` on a tiny model of each family, by name.

    Args:
        families: names among `FAMILIES`.
        length: tokens of the probe prompt.
        progress: show a bar; default: when stderr is a terminal.
    """
    from .check import check_model

    found = {}
    with progress_bar("checking", len(families), show=progress) as advance:
        for family in families:
            found[family] = check_model(load(family), length=length, progress=False)
            advance(family)
    return found
