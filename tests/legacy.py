"""HookedTransformer twins of transformers models, for transformer-lens 3.x."""

from __future__ import annotations

from typing import Any

import torch


def hooked_transformer(hf_model: Any, family: str, n_ctx: int = 256, fold_ln: bool = False) -> Any:
    """A HookedTransformer with the weights of ``hf_model``, processed only where ``fold_ln`` says so."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig  # type: ignore[attr-defined]
    from transformer_lens.pretrained import weight_conversions as convert

    c = hf_model.config
    common: dict[str, Any] = {"seed": 0, "device": "cpu", "dtype": torch.float32, "tokenizer_prepends_bos": False}
    if family == "gpt2":
        cfg = HookedTransformerConfig(
            n_layers=c.n_layer,
            d_model=c.n_embd,
            n_ctx=c.n_positions,
            d_head=c.n_embd // c.n_head,
            n_heads=c.n_head,
            d_mlp=4 * c.n_embd,
            d_vocab=c.vocab_size,
            act_fn="gelu_new",
            normalization_type="LN",
            eps=c.layer_norm_epsilon,
            **common,
        )
        state = convert.convert_gpt2_weights(hf_model, cfg)
    else:
        rope = c.rope_parameters
        cfg = HookedTransformerConfig(
            n_layers=c.num_hidden_layers,
            d_model=c.hidden_size,
            n_ctx=n_ctx,
            d_head=c.head_dim,
            n_heads=c.num_attention_heads,
            n_key_value_heads=c.num_key_value_heads,
            d_mlp=c.intermediate_size,
            d_vocab=c.vocab_size,
            act_fn="silu",
            normalization_type="RMS",
            eps=c.rms_norm_eps,
            positional_embedding_type="rotary",
            rotary_base=int(rope["rope_theta"]),
            rotary_dim=c.head_dim,
            rotary_adjacent_pairs=False,
            gated_mlp=True,
            final_rms=True,
            original_architecture="LlamaForCausalLM",
            use_qk_norm=family == "qwen3",
            **common,
        )
        converter = convert.convert_qwen3_weights if family == "qwen3" else convert.convert_llama_weights
        state = converter(hf_model, cfg)
    model = HookedTransformer(cfg, move_to_device=False)
    model.load_and_process_state_dict(
        state, fold_ln=fold_ln, center_writing_weights=False, center_unembed=False, fold_value_biases=False
    )
    return model.eval()
