"""The entities of a KB as word pieces of a ranker's tokenizer, in the shards that encode-kb makes too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pel_ray.artifacts import MANIFEST, Input, Request, read_manifest
from pel_ray.ranker import RankerParts
from pel_ray.storage import Location
from pel_ray.tables import TableFolder
from pel_ray.text import Texts
from pel_ray.tokens import COLUMNS, tokenise, write_shard
from pel_ray.vectors import Shard, plan_shards

SHARD_ROWS = 8192
"""As many as encode-kb takes by default, so that either finds what the other has made."""


def token_request(kb: TableFolder, parts: RankerParts) -> Request:
    """What is asked for; equal to encode-kb's where tokenizer, template and length are."""
    text = parts.settings.text
    return Request(
        kind="tokens",
        inputs={"kb": kb.as_input, "tokenizer": Input(path=parts.folder.address, digest=parts.base.tokenizer_digest)},
        settings={
            "views": "entity",
            "shard_rows": SHARD_ROWS,
            "template": text.template,
            "entity_length": text.entity_length,
        },
    )


def token_name(shard: Shard, request: Request) -> str:
    return f"tokens-{shard.stem}-{request.fingerprint[:8]}.arrow"


def token_files(folder: Location, request: Request) -> list[Location]:
    """The shards in a finished folder, in order."""
    tag = request.fingerprint[:8]
    return [folder / name for name in sorted(folder.names()) if name.endswith(f"-{tag}.arrow")]


def token_places(folders: Iterable[Location], request: Request) -> list[Location]:
    """Where steps leave the word pieces of a KB in their folders."""
    return [folder / name for folder in folders for name in ("tokens", f"tokens-{request.fingerprint[:8]}")]


def find_tokens(request: Request, places: Iterable[Location]) -> list[Location] | None:
    """The shards of the first folder that holds just these word pieces; nothing where none does."""
    for folder in places:
        if (folder / MANIFEST).is_file() and read_manifest(folder).request.fingerprint == request.fingerprint:
            return token_files(folder, request)
    return None


def write_token_shard(kb: TableFolder, texts: Texts, shard: Shard, file: Location) -> None:
    rows = kb.rows(shard.start, shard.stop, COLUMNS).to_pylist()
    write_shard(file, tokenise(texts, rows, shard.start, with_synonyms=False))


def write_tokens(kb: TableFolder, texts: Texts, folder: Location, request: Request) -> list[Location]:
    """All shards of a KB, made in this process."""
    return list(_written(kb, texts, folder, request))


def _written(kb: TableFolder, texts: Texts, folder: Location, request: Request) -> Iterator[Location]:
    for shard in plan_shards(kb.num_rows, SHARD_ROWS):
        file = folder / token_name(shard, request)
        write_token_shard(kb, texts, shard, file)
        yield file
