"""`load_model`: from whatever the user has to a checked `HookedModel`."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import torch

from .backends import BridgeBackend, FusedView, LegacyBackend, shared_copy, unhook
from .bundled import BUNDLED, ensure
from .check import refuse_broken
from .hooked import HookedModel, ModelInfo, Recipe
from .hub import checkpoint_for
from .wrappers import text_only

log = logging.getLogger(__name__)


@torch.inference_mode(False)  # weights made under inference mode could never carry a gradient
def load_model(
    source: Any,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    device_map: Any = None,
    tokenizer: Any = None,
    revision: str | None = None,
) -> HookedModel:
    """Load a causal language model into TransformerLens hooks and check it.

    Args:
        source: "smollm2-135m" (the bundled model, the same bytes everywhere), a Hub id, a local folder,
            a transformers model (with ``tokenizer=``, or as the pair ``(model, tokenizer)``), a
            ``TransformerBridge`` or, on transformer-lens 3.x, a ``HookedTransformer``.
            A transformers model is left as it is: both views are built over its tensors.
        device: where to put the weights; default: a GPU if there is one, else the CPU.
        dtype: dtype of the weights; default: the checkpoint's own. Scores are float32 in any case.
        device_map: passed to transformers, instead of ``device``.
        tokenizer: tokenizer of a model given as an object.
        revision: Hub revision (branch, tag or commit).

    Raises:
        ValueError: for a source of a kind or architecture that cannot be hooked.
        FileNotFoundError: when a Hub id is neither cached nor reachable.
        RuntimeError: when a cached step disagrees with the uncached one.
    """
    if isinstance(source, tuple):
        source, tokenizer = source
    if isinstance(source, str | Path):
        hf_model, tokenizer, info = _from_name(source, device, dtype, device_map, revision)
        model = _from_hf(hf_model, tokenizer, info)
        model.recipe = _recipe(source, device=device, dtype=dtype, device_map=device_map, revision=revision)
    else:
        model = _from_object(source, tokenizer)
    refuse_broken(model)
    return model


def _from_name(
    source: str | Path, device: Any, dtype: Any, device_map: Any, revision: str | None
) -> tuple[Any, Any, ModelInfo]:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    device, dtype = _usable_device(device), _usable_dtype(dtype)
    if str(source) in BUNDLED:
        folder, local, found = str(ensure(str(source))), True, BUNDLED[str(source)].checkpoint_sha256
        revision = None
    else:
        folder, local = checkpoint_for(source, revision)
        found = revision or ""
    options: dict[str, Any] = {"dtype": dtype, "local_files_only": local, "revision": revision}
    if device_map is not None:
        options["device_map"] = device_map
    try:
        hf_model = AutoModelForCausalLM.from_pretrained(folder, **options)
    except SafetensorError as error:
        raise ValueError(f"{source}: its weights cannot be read ({error}); fetch the checkpoint again") from error
    tokenizer = _tokenizer(source, folder, local, revision)
    if device_map is None:
        hf_model = hf_model.to(device or default_device())
    commit = getattr(hf_model.config, "_commit_hash", None)
    return hf_model, tokenizer, ModelInfo(str(source), revision=commit or found or None)


def load_tokenizer(source: str | Path, revision: str | None = None) -> Any:
    """The tokenizer that `load_model` would load by this name or from this folder.

    Raises:
        ValueError: when there is none.
        FileNotFoundError: see `load_model`.
    """
    if str(source) in BUNDLED:
        return _tokenizer(source, str(ensure(str(source))), True, None)
    return _tokenizer(source, *checkpoint_for(source, revision), revision)


def _tokenizer(source: str | Path, folder: str, local: bool, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=local, revision=revision)
    except (OSError, ValueError, ImportError) as error:
        raise ValueError(
            f"{source}: no usable tokenizer there ({str(error).splitlines()[0][:120]}); "
            "load it yourself and give load_model((model, tokenizer))"
        ) from error


def _recipe(source: str | Path, **options: Any) -> Recipe:
    """How to load the model once more, from wherever another process may run."""
    folder = Path(source).expanduser()
    local = str(source) not in BUNDLED and folder.exists()
    return Recipe(str(source), str(folder.resolve() if local else source), options)


def _usable_device(device: Any) -> torch.device | None:
    """The device, tried out before any weight is read."""
    if device is None:
        return None
    try:
        torch.empty(1, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from error


def _usable_dtype(dtype: torch.dtype | str | None) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return "auto"
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype {dtype!r} is not a floating-point type like float32, bfloat16 or float16")
    return found


def default_device() -> torch.device:
    """A GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _from_object(source: Any, tokenizer: Any) -> HookedModel:
    from transformers import PreTrainedModel

    if isinstance(source, PreTrainedModel):
        name = getattr(source, "name_or_path", "") or type(source).__name__
        return _from_hf(source, tokenizer, ModelInfo(name, revision=getattr(source.config, "_commit_hash", None)))
    kinds = {kind.__name__ for kind in type(source).__mro__}
    if "TransformerBridge" in kinds:
        return _from_bridge(source, tokenizer)
    if "HookedTransformer" in kinds:
        backend = LegacyBackend(source)
        info = ModelInfo(
            source.cfg.model_name,
            dtype=str(source.cfg.dtype).removeprefix("torch."),
            backend=backend.kind,
            prefill="hooked, in chunks",
            processing=backend.processing(),
        )
        return HookedModel(backend, None, tokenizer or source.tokenizer, info)
    raise ValueError(
        f"cannot load a {type(source).__name__}: give a model name, a folder, a transformers model, "
        "a TransformerBridge or a HookedTransformer"
    )


def _from_hf(hf_model: Any, tokenizer: Any, info: ModelInfo) -> HookedModel:
    from transformer_lens.model_bridge import TransformerBridge

    # Also because transformer-lens (4.3) runs `pip install torchvision` when it hooks a multimodal model.
    hf_model = text_only(hf_model)
    hooked: Any = shared_copy(hf_model, "eager")
    hooked.config.architectures = [type(hf_model).__name__]
    try:
        bridge = TransformerBridge.boot_transformers(
            info.name, hf_model=hooked, tokenizer=_placeholder_tokenizer(), dtype=hf_model.dtype
        )
    except ValueError as error:
        raise ValueError(
            f"TransformerLens cannot hook {type(hf_model).__name__} ({info.name}): {str(error).split('.')[0]}"
        ) from error
    _give_tokenizer(bridge, tokenizer)
    _keep_rotary_dtype(bridge, hf_model.dtype)
    try:
        fused = FusedView(shared_copy(hf_model, "sdpa"))
    except ValueError as error:
        log.warning("%s: %s; prefill runs in chunks on the hooked model", info.name, error)
        fused = None
    return _assemble(bridge, fused, tokenizer, info, str(hf_model.dtype))


def _keep_rotary_dtype(bridge: Any, dtype: torch.dtype) -> None:
    """Cast rotated queries and keys back to the model's dtype, as transformers does.

    OLMo-2 and OLMo-3 rotate in float32; the bridge (transformer-lens 4.3) leaves them there, and its attention
    then fails in half precision.
    """
    if dtype == torch.float32:
        return

    def cast(rotated: torch.Tensor, hook: Any) -> torch.Tensor | None:
        return rotated.to(dtype) if rotated.dtype != dtype else None

    for block in bridge.blocks:
        for name in ("hook_rot_q", "hook_rot_k"):
            point = getattr(block.attn, name, None)
            if point is not None:
                point.add_hook(cast, is_permanent=True)


def _from_bridge(bridge: Any, tokenizer: Any) -> HookedModel:
    name = str(getattr(bridge.cfg, "model_name", "bridge"))
    fused: FusedView | None = None
    if getattr(bridge, "compatibility_mode", False):
        log.warning("%s: the bridge's weights are processed; prefill runs in chunks on the hooked model", name)
    else:
        try:
            fused = FusedView(shared_copy(unhook(bridge), "sdpa"))
        except (RuntimeError, ValueError, TypeError) as error:
            log.warning("%s: no fused view (%s); prefill runs in chunks on the hooked model", name, error)
    dtype = str(next(iter(bridge.parameters())).dtype)
    return _assemble(bridge, fused, tokenizer or bridge.tokenizer, ModelInfo(name), dtype)


def _assemble(bridge: Any, fused: FusedView | None, tokenizer: Any, info: ModelInfo, dtype: str) -> HookedModel:
    bridge.eval()
    backend = BridgeBackend(bridge)
    info = ModelInfo(
        info.name,
        revision=info.revision,
        dtype=dtype.removeprefix("torch."),
        backend=backend.kind,
        prefill="fused" if fused is not None else "hooked, in chunks",
        processing=backend.processing(),
    )
    return HookedModel(backend, fused, tokenizer, info)


def _placeholder_tokenizer() -> Any:
    """A tokenizer for booting a bridge, which insists on one and would load the real one a second time."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"?": 0, ".": 1}, unk_token="?"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", eos_token=".")


def _give_tokenizer(bridge: Any, tokenizer: Any) -> None:
    """Hand the real tokenizer to the bridge, so that its own text methods work for the user."""
    if tokenizer is None:
        return
    bridge._tokenizer = copy.copy(tokenizer)  # the public setter would reload it and overwrite d_vocab
    ids = tokenizer("a")["input_ids"]
    bridge.cfg.tokenizer_prepends_bos = bool(ids) and ids[0] == tokenizer.bos_token_id
