"""A tiny encoder with a real tokenizer, written by the tests: random weights, the layout of a downloaded one."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
WORDS = "fever aspirin hospital scanner finding chemical disease hot too has the with name term".split()


def write_encoder(folder: Path, *, with_unused: bool = True, vocabulary: int | None = None) -> Path:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    unused = ["[unused0]", "[unused1]", "[unused2]"] if with_unused else []
    pieces = [*special, *unused, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ",", ".", "-"]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(pieces))
    backend = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    BertTokenizerFast(tokenizer_object=backend._tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=vocabulary or len(pieces),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
    return folder
