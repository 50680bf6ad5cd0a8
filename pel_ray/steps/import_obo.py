"""import obo: an ontology becomes a KB and, on request, its synonyms become mentions to train a first model on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from pel_ray.chance import position
from pel_ray.formats.obo import Hierarchy, Term, entity_of, read_terms
from pel_ray.schema import Entity, Mention
from pel_ray.spec import Settings
from pel_ray.steps.importing import ImportSettings, Outcome, Path, Reading, Table, import_tables, one_file
from pel_ray.tally import Tally

Scope = Literal["exact", "narrow", "broad", "related"]


class OntologySettings(Settings):
    """How an ontology is read."""

    scopes: Annotated[list[Scope], Field(min_length=1)] = ["exact"]
    """Which synonyms count as names of the term; the others only mean something near it."""
    prefixes: list[str] = []
    """Keep only terms whose id starts with one of these (HP:), where a file carries terms of other ontologies too."""
    branch_depth: int = Field(default=2, ge=0)
    """A term's types are its ancestors this many steps below a root, and its own `namespace:`, not the
    `default-namespace` of the file; 0: the namespace only."""
    mentions: Literal["none", "synonyms"] = "none"
    """synonyms: each synonym becomes a mention of its term, in splits that share no term."""
    validation: float = Field(default=0.1, ge=0, lt=1)
    """Share of the terms whose mentions are for validation."""
    test: float = Field(default=0.1, ge=0, lt=1)
    """Share of the terms whose mentions are for testing."""
    keep_held_out: bool = False
    """Leave the synonyms of validation and test terms in the KB; a name match then scores what it was given."""
    seed: int = 13
    """Decides which terms are held out."""

    @model_validator(mode="after")
    def _leaves_something_to_train_on(self) -> OntologySettings:
        if self.validation + self.test >= 1:
            raise ValueError(f"validation {self.validation} and test {self.test} leave nothing to train on")
        return self

    def split_of(self, entity_id: str) -> str:
        """The split of a term, a function of the seed and its id alone: a new release moves no old term."""
        place = position(self.seed, entity_id)
        if place < self.test:
            return "test"
        return "validation" if place < self.test + self.validation else "train"


class OboSettings(ImportSettings, OntologySettings):
    """OBO 1.2 or 1.4: HPO, MONDO, DOID, UBERON, GO, ..."""

    file: Path
    """The ontology, plain or gzipped."""

    elsewhere: ClassVar[frozenset[str]] = ImportSettings.elsewhere | {"file"}


def import_obo(settings: OboSettings) -> list[Outcome]:
    sources = {"ontology": one_file(settings.file)}
    with_mentions = settings.mentions == "synonyms"

    def entities(reading: Reading) -> Iterator[Entity]:
        for entity in _entities(reading, settings):
            if with_mentions and not settings.keep_held_out and settings.split_of(entity.entity_id) != "train":
                reading.tally.drop("synonyms", "held out: mentions of validation or test", len(entity.synonyms))
                entity = replace(entity, synonyms=())
            yield entity

    def mentions(reading: Reading) -> Iterator[Mention]:
        for entity in _entities(reading, settings):
            reading.tally.read("mentions", len(entity.synonyms))
            yield from _mentions_of(entity, settings.split_of(entity.entity_id))

    def table(kind: Literal["kb", "mentions"]) -> Table:
        return Table(
            kind=kind,
            sources=sources,
            settings=settings.what_counts(),
            rows=entities if kind == "kb" else mentions,
            subject="terms" if kind == "kb" else "mentions",
            passes=2,
            # A skipped term once gave its children a blank type, or that of its double.
            version=2 if settings.on_error == "skip" else 1,
        )

    return import_tables(settings, [table("kb"), table("mentions")] if with_mentions else [table("kb")])


def _entities(reading: Reading, settings: OntologySettings) -> Iterator[Entity]:
    hierarchy = Hierarchy.of(read_terms(reading.lines("ontology"), Tally()))
    branches = hierarchy.branches(settings.branch_depth) if settings.branch_depth else {}
    tally = reading.tally
    seen: dict[str, str] = {}
    for term in read_terms(reading.lines("ontology"), tally):
        tally.read("terms")
        tally.read("synonyms", len(term.synonyms))
        if not _is_kept(term, settings, seen, tally):
            tally.drop("synonyms", "of a term that was dropped", len(term.synonyms))
            continue
        seen[term.id] = term.where
        entity = entity_of(term, settings.scopes, branches, hierarchy.replaced.get(term.id, ()))
        _count_synonyms(term, entity, settings, tally)
        if not entity.description:
            tally.note("terms", "without a definition")
        yield entity


def _is_kept(term: Term, settings: OntologySettings, seen: dict[str, str], tally: Tally) -> bool:
    """Counts why not; `seen` tells where each term that was kept stands."""
    if not term.id:
        problem = "a [Term] stanza without `id:`. Every term needs one: add it, or pass --on-error skip to leave it out"
        tally.problem("terms", "without an id", term.where, problem)
    elif term.is_obsolete:
        tally.drop("terms", "obsolete")
    elif settings.prefixes and not term.id.startswith(tuple(settings.prefixes)):
        tally.drop("terms", "id with another prefix")
    elif not term.name.strip():
        problem = f"{term.id} has no title. Give it a `name:`, or pass --on-error skip"
        tally.problem("terms", "without a title", term.where, problem)
    elif term.id in seen:
        first = f"the id {term.id} occurs twice, first at {seen[term.id]}"
        problem = f"{first}. Ids must be unique: remove one; --on-error skip keeps the first"
        tally.problem("terms", "id occurs twice", term.where, problem)
    else:
        return True
    return False


def _count_synonyms(term: Term, entity: Entity, settings: OntologySettings, tally: Tally) -> None:
    num_in_scope = 0
    for _, scope in term.synonyms:
        if scope in settings.scopes:
            num_in_scope += 1
        else:
            tally.drop("synonyms", f"of scope {scope}")
    tally.drop("synonyms", "equal to the name or to another", num_in_scope - len(entity.synonyms))


def _mentions_of(entity: Entity, split: str) -> Iterator[Mention]:
    for number, synonym in enumerate(entity.synonyms):
        yield Mention(
            mention_id=f"{entity.entity_id}.{number}",
            document_id=entity.entity_id,
            context_left="",
            mention=synonym,
            context_right="",
            entity_ids=(entity.entity_id,),
            split=split,
            types=entity.types,
            where=entity.where,
        )
