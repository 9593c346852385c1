"""How much memory a trial takes, told before it is run, and whether there is so much.

Everything is counted from sizes: weights, keys and values, what the fused prefill and the hooked segment hold for a
moment, and what is kept. Nothing here runs a model, and a config without weights will do. Peaks measured on the
bundled model lie within a factor of 1.5 (`docs/benchmarks.md`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .choices import unknown
from .models.backends import CHUNK, context_limit, shared_copy, windows_of
from .models.hooked import HookedModel
from .models.wrappers import text_only
from .scoring.measure import WINDOW

if TYPE_CHECKING:
    import pandas as pd

PURPOSES = ("score", "patch", "ablate")
SWITCH = "LOCOS_TL_MEMORY_CHECK"
"""Environment variable; "off" lets runs start whatever the estimate says."""
ROW_TOKENS = 8192
"""Tokens that go through together when heads are patched (`causal.pair_runs`)."""
STREAM_BYTES, BATCH_BYTES = 2**30, 2**32
"""Limits that `causal.sweep` and `causal.answers` keep."""
_LENS_CHUNK = 16_384
_UNIT = 2**20
_CUT = re.compile(r"\bquery_key_value\.")
"""The joint projection (GPT-NeoX) of which the hooked view holds the parts a second time; others are views."""
_FIXED = 128 * 2**20
"""Libraries that load at the first run, and buffers of the allocator, as measured on a CPU."""


class NotEnoughMemory(ValueError):
    """A run would need more memory than there is."""


@dataclass(frozen=True)
class Sizes:
    """What of a model decides how much memory its trials take.

    Attributes:
        weights: bytes of all parameters.
        width: bytes of one number in weights and activations.
        d_mlp: numbers that a position holds inside an MLP (of a mixture: in all experts it goes to).
        windows: per layer, the sliding window or None.
        fused: whether the prompt is prefilled with fused attention.
        limit: longest context, where the config names one.
    """

    name: str
    weights: int
    width: int
    n_heads: int
    n_key_value_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    d_vocab: int
    windows: tuple[int | None, ...]
    fused: bool
    limit: int | None

    @property
    def n_layers(self) -> int:
        return len(self.windows)

    @classmethod
    def of(cls, source: Any, dtype: torch.dtype | str | None = None) -> Sizes:
        """Sizes of a loaded model, a transformers config, or a name or folder, of which only the config is read.

        Args:
            source: what to measure.
            dtype: of the weights; default: the model's own, or the config's.

        Raises:
            ValueError: for something else, or a config of no causal language model.
        """
        if isinstance(source, HookedModel):
            return _of_model(source)
        if isinstance(source, str | Path):
            return _of_config(_config_of(source), str(source), dtype)
        if hasattr(source, "get_text_config"):
            return _of_config(source, getattr(source, "name_or_path", "") or type(source).__name__, dtype)
        raise ValueError(f"sizes are those of a model, a config, a name or a folder, not of a {type(source).__name__}")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that one trial takes at its peak, in parts that add up.

    Attributes:
        name: the model.
        n_tokens: tokens of the prompt.
        purpose: what is done with the trial: score, patch or ablate.
        parts: bytes by what they are for; "weights" first.
        limit: the model's context limit, or None.
    """

    name: str
    n_tokens: int
    purpose: str
    parts: Mapping[str, int]
    limit: int | None = None

    @property
    def total(self) -> int:
        """All of it, weights included."""
        return sum(self.parts.values())

    @property
    def beyond_weights(self) -> int:
        """What a model that is already loaded needs on top."""
        return self.total - self.parts["weights"]

    def table(self) -> list[dict[str, Any]]:
        """Parts and their sum in MiB."""
        rows = [{"part": part, "MiB": round(size / _UNIT, 1)} for part, size in self.parts.items()]
        return [*rows, {"part": "total", "MiB": round(self.total / _UNIT, 1)}]

    def to_frame(self) -> pd.DataFrame:
        """One row a part: bytes and MiB."""
        import pandas as pd

        rows = [{"part": part, "bytes": size, "MiB": size / _UNIT} for part, size in self.parts.items()]
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        about = {"model": self.name, "n_tokens": self.n_tokens, "purpose": self.purpose, "context_limit": self.limit}
        return about | {"bytes": dict(self.parts), "total_bytes": self.total}

    def __repr__(self) -> str:
        return (
            f"MemoryEstimate({self.name!r}, {self.n_tokens} tokens, {self.purpose}: {told(self.total)}, of which "
            f"{told(self.parts['weights'])} weights)"
        )

    def _repr_html_(self) -> str:
        from . import html

        title = f"Memory to {self.purpose} {self.n_tokens} tokens with {self.name}: {told(self.total)}"
        return html.card(title, html.table(self.table()))


def estimate(
    source: Any,
    n_tokens: int,
    *,
    purpose: str = "score",
    max_new_tokens: int = 50,
    batch_size: int = 8,
    kinds: Iterable[str] = ("total", "direct"),
    dtype: torch.dtype | str | None = None,
) -> MemoryEstimate:
    """Memory at the peak of one trial.

    Args:
        source: a loaded model, a transformers config, or a name or folder, of which only the config is read.
        n_tokens: tokens of the prompt.
        purpose: "score" (`score_heads`), "patch" (`patch_trials`) or "ablate" (`ablate_sweep`).
        max_new_tokens: decode limit.
        batch_size: of "ablate": sets of heads that are decoded together.
        kinds: of "patch": kinds of effects.
        dtype: of the weights, where they are not loaded; default: the config's.

    Raises:
        ValueError: for an unknown purpose, a length below 1, or an unusable source.
    """
    if purpose not in PURPOSES:
        raise ValueError(unknown("purpose", purpose, PURPOSES))
    if n_tokens < 1:
        raise ValueError(f"n_tokens must be at least 1, got {n_tokens}")
    sizes = source if isinstance(source, Sizes) else Sizes.of(source, dtype)
    parts = {"weights": sizes.weights, "keys and values": cache_bytes(sizes, n_tokens + max_new_tokens)}
    if purpose == "score":
        moments = {
            "prefill": _prefill(sizes, n_tokens),
            "hooked segment": _segment(sizes, n_tokens, max_new_tokens),
        }
        parts |= {"rows kept": _readings(sizes, n_tokens)}
    elif purpose == "patch":
        moments = {"patched runs": _prefill(sizes, max(n_tokens, ROW_TOKENS))}
        if "attribution" in kinds:
            moments["backward pass"] = sizes.n_layers * _prefill(sizes, n_tokens)
        parts |= {"activations of both runs": _activations(sizes, n_tokens)}
    else:
        moments = {"prefill": _prefill(sizes, n_tokens)}
        streams = min(STREAM_BYTES, sizes.n_layers * n_tokens * sizes.d_model * sizes.width)
        one = parts["keys and values"]
        parts |= {"streams": streams, "caches of a batch": 2 * min(batch_size * one, max(BATCH_BYTES, one))}
    busiest = max(moments, key=lambda name: moments[name])  # they come one after the other
    parts |= {f"workspace ({busiest})": moments[busiest], "logits": _logits(sizes), "libraries": _FIXED}
    return MemoryEstimate(sizes.name, n_tokens, purpose, parts, sizes.limit)


def cache_bytes(sizes: Sizes, n_tokens: int) -> int:
    """Keys and values of one prompt; layers with a sliding window keep the window and a copy from before decoding."""
    held = [n_tokens if window is None else min(n_tokens, 2 * window) for window in sizes.windows]
    return 2 * sum(held) * sizes.n_key_value_heads * sizes.d_head * sizes.width


def _prefill(sizes: Sizes, n_tokens: int) -> int:
    """Activations of the widest moment of one layer, over all positions that go through together."""
    at_once = n_tokens if sizes.fused else min(n_tokens, CHUNK)
    # In attention: queries before and after rotary embedding, keys and values repeated for the query heads, output.
    attention = 6 * sizes.n_heads * sizes.d_head
    mlp = 4 * sizes.d_mlp  # gate, its activation, up, and their product
    held = at_once * (3 * sizes.d_model + max(attention, mlp)) * sizes.width
    if not sizes.fused:  # scores, softmax in float32, and the pattern in the model's dtype
        return held + sizes.n_heads * at_once * n_tokens * (2 * sizes.width + 4)
    narrow = [window for window in sizes.windows if window is not None and window < n_tokens]
    return held + (n_tokens * n_tokens * (1 + sizes.width) if narrow else 0)  # a mask of a window is written out


def _segment(sizes: Sizes, n_tokens: int, max_new_tokens: int) -> int:
    """One layer of the hooked segment: attention rows of the last prompt tokens and the answer, and their phi."""
    rows, keys = WINDOW + max_new_tokens, n_tokens + max_new_tokens
    patterns = sizes.n_heads * rows * keys * (2 * sizes.width + 4)
    phi = 3 * sizes.n_heads * max_new_tokens * keys * 4
    repeated = 2 * keys * sizes.n_heads * sizes.d_head * sizes.width
    values = 2 * keys * sizes.n_key_value_heads * sizes.d_head * 4
    return patterns + phi + repeated + values


def _readings(sizes: Sizes, n_tokens: int) -> int:
    """Positions, writes and promoted tokens that are kept of a few trials, with the unembedding of a chunk."""
    from .scoring.reading import DENSE

    heads = sizes.n_layers * sizes.n_heads
    kept = 4 * min(DENSE, heads * n_tokens) * 4
    return kept + heads * sizes.d_model * 4 + min(_LENS_CHUNK, sizes.d_vocab) * (heads + sizes.d_model) * 4


def _activations(sizes: Sizes, n_tokens: int) -> int:
    """Head outputs of the clean and the corrupt run, and the streams at which patched runs enter."""
    per_token = 2 * sizes.n_layers * sizes.n_heads * sizes.d_head + (sizes.n_layers + 1) * sizes.d_model
    return n_tokens * per_token * sizes.width


def _logits(sizes: Sizes) -> int:
    """Of one position, in the model's dtype and in float32."""
    return sizes.d_vocab * (sizes.width + 4)


# --- sizes ------------------------------------------------------------------------------------------


def _of_model(model: HookedModel) -> Sizes:
    g, cfg = model.geometry, model.hooked.cfg
    hf_config = getattr(getattr(model.hooked, "original_model", None), "config", None)
    d_mlp = _d_mlp(hf_config.get_text_config()) if hf_config is not None else int(cfg.d_mlp or 4 * g.d_model)
    return Sizes(
        name=model.info.name,
        weights=held_bytes(model),
        width=getattr(torch, model.info.dtype).itemsize,
        n_heads=g.n_heads,
        n_key_value_heads=g.n_key_value_heads,
        d_head=g.d_head,
        d_model=g.d_model,
        d_mlp=d_mlp,
        d_vocab=g.d_vocab,
        windows=g.windows,
        fused=model.fused is not None,
        limit=g.n_ctx,
    )


def held_bytes(model: HookedModel) -> int:
    """Memory of all weights; what both views share is counted once, and a joint projection that was cut twice."""
    views = [model.hooked, *([model.fused.model] if model.fused else [])]
    storages = [p.untyped_storage() for view in views for p in view.parameters()]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _of_config(config: Any, name: str, dtype: torch.dtype | str | None) -> Sizes:
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = text_only(AutoModelForCausalLM.from_config(config))
    except (ValueError, KeyError) as error:
        message = str(error).splitlines()[0][:120]
        raise ValueError(f"{name}: not the config of a causal language model ({message})") from error
    text = model.config
    try:
        shared_copy(model, "sdpa")
        fused = True
    except ValueError:
        fused = False
    width = _width(dtype, config)
    n_heads = text.num_attention_heads
    return Sizes(
        name=name,
        weights=sum(p.numel() * (1 + (_CUT.search(name_of) is not None)) for name_of, p in model.named_parameters())
        * width,
        width=width,
        n_heads=n_heads,
        n_key_value_heads=getattr(text, "num_key_value_heads", None) or n_heads,
        d_head=getattr(text, "head_dim", None) or text.hidden_size // n_heads,
        d_model=text.hidden_size,
        d_mlp=_d_mlp(text),
        d_vocab=text.vocab_size,
        windows=windows_of(text, text.num_hidden_layers),
        fused=fused,
        limit=context_limit(text),
    )


def _config_of(source: str | Path) -> Any:
    from transformers import AutoConfig

    from .models.bundled import BUNDLED, ensure
    from .models.hub import checkpoint_for

    folder, local = (str(ensure(str(source))), True) if str(source) in BUNDLED else checkpoint_for(source, None)
    return AutoConfig.from_pretrained(folder, local_files_only=local)


def _width(dtype: torch.dtype | str | None, config: Any) -> int:
    if dtype in (None, "auto"):
        dtype = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None) or torch.float32
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is not a floating-point type like float32, bfloat16 or float16")
    return found.itemsize


def _d_mlp(text: Any) -> int:
    dense = getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * text.hidden_size
    experts = getattr(text, "num_experts_per_tok", None) or 0
    return max(int(dense), int(experts * (getattr(text, "moe_intermediate_size", None) or (dense if experts else 0))))


# --- what there is ----------------------------------------------------------------------------------


def available(device: torch.device | str = "cpu") -> int:
    """Bytes that are free on a device: of a GPU its own, elsewhere the machine's within the limit of its container."""
    device = torch.device(device)
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + int(reserved)
    import psutil  # type: ignore[import-untyped]

    return min([int(psutil.virtual_memory().available), *_container()])


def _container() -> list[int]:
    """What a container's memory limit leaves, where there is one."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (
            (folder / "memory.max").read_text(encoding="ascii").strip(),
            int((folder / "memory.current").read_text(encoding="ascii")),
        )
    except (OSError, ValueError):
        return []
    return [max(0, int(limit) - used)] if limit.isdigit() else []


def require_memory(model: HookedModel, n_tokens: int, purpose: str, **how: Any) -> None:
    """Refuse a run whose longest trial would not fit into memory.

    Args:
        model: already loaded: its weights are not counted.
        n_tokens: tokens of the longest prompt.
        purpose, how: as in `estimate`.

    Raises:
        NotEnoughMemory: naming what is needed, what there is, and what to do.
    """
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no", "false"):
        return
    found = estimate(model, n_tokens, purpose=purpose, **how)
    need, have = found.beyond_weights, _available_to(model)
    if need <= have:
        return
    largest = max((part for part in found.parts if part != "weights"), key=lambda part: found.parts[part])
    half = "" if model.info.dtype in ("bfloat16", "float16") else ", dtype='bfloat16'"
    raise NotEnoughMemory(
        f"the longest trial ({n_tokens} tokens) needs about {told(need)} beside the weights of {model.info.name} "
        f"(most of it: {largest}, {told(found.parts[largest])}), and {told(have)} are free on {model.device}. Use "
        f"shorter contexts{half} or another device; {SWITCH}=off in the environment starts the run all the same."
    )


def _available_to(model: HookedModel) -> int:
    """Free memory on all devices that hold a part of the model."""
    devices = {p.device for p in model.hooked.parameters() if p.device.type == "cuda"}
    return sum(map(available, devices)) if devices else available(model.device)


def told(size: int) -> str:
    """Bytes as a person says them: "3.2 GiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / _UNIT:.0f} MiB"
