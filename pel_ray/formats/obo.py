"""OBO 1.2 and 1.4 ontologies: `[Term]` stanzas with names, definitions, scoped synonyms and cross-references."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pel_ray.errors import InputError
from pel_ray.formats.lines import Lines
from pel_ray.schema import Entity
from pel_ray.tally import Tally

SCOPES = ("exact", "narrow", "broad", "related")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(.*)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "W": " "}


@dataclass(slots=True)
class Term:
    """One stanza, still in the words of the file."""

    where: str
    id: str = ""
    name: str = ""
    definition: str = ""
    namespace: str = ""
    synonyms: list[tuple[str, str]] = field(default_factory=list)
    """Text and scope."""
    alternative_ids: list[str] = field(default_factory=list)
    xrefs: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    replaced_by: list[str] = field(default_factory=list)
    is_obsolete: bool = False


def read_terms(lines: Lines, tally: Tally) -> Iterator[Term]:
    """The terms of an ontology, obsolete ones and those without an id too; stanzas of other kinds are counted."""
    term: Term | None = None
    num_stanzas = 0
    for number, line in lines:
        line = line.strip()
        if line.startswith("["):
            if term is not None:
                yield term
            if not line.endswith("]"):
                raise InputError(lines.where(number), f"stanza header {line!r} does not end in ]")
            num_stanzas += 1
            term = Term(lines.where(number)) if line == "[Term]" else None
            if term is None:
                tally.read("other stanzas")
                tally.drop("other stanzas", f"{line}: not a term")
        elif line and not line.startswith("!"):
            tag, colon, value = line.partition(":")
            if not colon:
                problem = f"{line[:60]!r} is not a `tag: value` line of OBO. Is the file OBO, and whole?"
                raise InputError(lines.where(number), problem)
            if term is not None:
                _read_tag(term, tag, value.strip(), lines.where(number))
    if term is not None:
        yield term
    if num_stanzas == 0:
        raise InputError(lines.name, "holds no stanza. Expected OBO with [Term] stanzas")


def _read_tag(term: Term, tag: str, value: str, where: str) -> None:
    if (tag == "id" and term.id) or (tag == "name" and term.name):
        raise InputError(where, f"a second `{tag}:` in the stanza of {term.id}. Is a [Term] line missing?")
    if tag == "id":
        term.id = _bare(value)
    elif tag == "name":
        term.name = _unescaped(_without_modifier(value))
    elif tag == "def":
        term.definition = _quoted(value, where)[0]
    elif tag == "namespace":
        term.namespace = _bare(value)
    elif tag == "synonym":
        text, rest = _quoted(value, where)
        term.synonyms.append((text, _scope(rest)))
    elif tag in ("exact_synonym", "narrow_synonym", "broad_synonym", "related_synonym"):
        term.synonyms.append((_quoted(value, where)[0], tag.removesuffix("_synonym")))
    elif tag == "is_obsolete":
        term.is_obsolete = _bare(value) == "true"
    else:
        targets = {
            "alt_id": term.alternative_ids,
            "xref": term.xrefs,
            "is_a": term.parents,
            "replaced_by": term.replaced_by,
        }
        if tag in targets:
            targets[tag].append(_bare(value))


def _without_modifier(value: str) -> str:
    """Without a trailing modifier `{source="x"}`; other braces belong to the name."""
    brace = value.rfind(" {")
    return value[:brace].rstrip() if value.endswith("}") and brace >= 0 and "=" in value[brace:] else value


def _bare(value: str) -> str:
    """An id or word without the comment, modifier or quoted description after it."""
    return _unescaped(value.split(maxsplit=1)[0]) if value else ""


def _quoted(value: str, where: str) -> tuple[str, str]:
    match = _QUOTED.match(value)
    if match is None:
        raise InputError(where, f'{value[:60]!r} does not start with a whole "quoted text"')
    return _unescaped(match[1]), match[2]


def _scope(rest: str) -> str:
    word = rest.split(maxsplit=1)[0].lower() if rest else ""
    # The format's default where a synonym states no scope.
    return word if word in SCOPES else "related"


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text) if "\\" in text else text


@dataclass
class Hierarchy:
    """What one pass over the ontology tells about the others: branch names and replaced ids."""

    names: dict[str, str] = field(default_factory=dict)
    parents: dict[str, list[str]] = field(default_factory=dict)
    replaced: dict[str, list[str]] = field(default_factory=dict)
    """Live id -> the obsolete ids it replaces."""

    @classmethod
    def of(cls, terms: Iterable[Term]) -> Hierarchy:
        hierarchy = cls()
        for term in terms:
            if not term.id:
                continue
            if term.is_obsolete:
                for live in term.replaced_by:
                    hierarchy.replaced.setdefault(live, []).append(term.id)
            elif not hierarchy.names.get(term.id):
                # Of two terms with one id the first that has a name is kept, so it speaks for both here too.
                hierarchy.names[term.id] = term.name.strip()
                hierarchy.parents[term.id] = term.parents
        for parents in hierarchy.parents.values():
            # A parent outside the file, or obsolete, does not make its child less of a root.
            parents[:] = [parent for parent in parents if parent in hierarchy.parents]
        return hierarchy

    def branches(self, depth: int) -> dict[str, tuple[str, ...]]:
        """For every term the names of its ancestors (itself included) that lie `depth` steps below a root."""
        children: dict[str, list[str]] = {}
        for child, parents in self.parents.items():
            for parent in parents:
                children.setdefault(parent, []).append(child)
        level = {term for term, parents in self.parents.items() if not parents}
        shallower = set(level)
        for _ in range(depth):
            if not level:
                return {}
            level = {child for term in level for child in children.get(term, ())} - shallower
            shallower |= level
        found: dict[str, set[str]] = {}
        for top in level:
            stack = [top]
            while stack:
                term = stack.pop()
                if top not in found.setdefault(term, set()):
                    found[term].add(top)
                    stack += children.get(term, ())
        return {term: tuple(sorted(filter(None, (self.names[top] for top in tops)))) for term, tops in found.items()}


def entity_of(
    term: Term, scopes: Iterable[str], branches: dict[str, tuple[str, ...]], replaces: Iterable[str]
) -> Entity:
    """A term as an entity; `scopes` says which synonyms count as such."""
    synonyms = (text.strip() for text, scope in term.synonyms if scope in scopes)
    namespace = (term.namespace.replace("_", " "),) if term.namespace else ()
    return Entity(
        entity_id=term.id,
        title=term.name.strip(),
        types=namespace + branches.get(term.id, ()),
        description=term.definition,
        synonyms=tuple(dict.fromkeys(text for text in synonyms if text and text != term.name)),
        alternative_ids=tuple(dict.fromkeys((*term.alternative_ids, *replaces))),
        xrefs=tuple(dict.fromkeys(term.xrefs)),
        where=term.where,
    )
