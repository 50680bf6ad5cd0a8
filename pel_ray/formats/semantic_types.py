"""The 127 semantic types of the UMLS Semantic Network and their tree.

A public part of UMLS: ids and names as in its table SRDEF, indented below their parents.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import lru_cache

from pel_ray.errors import SettingsError

_TREE = """\
T051 Event
  T052 Activity
    T053 Behavior
      T054 Social Behavior
      T055 Individual Behavior
    T056 Daily or Recreational Activity
    T057 Occupational Activity
      T058 Health Care Activity
        T059 Laboratory Procedure
        T060 Diagnostic Procedure
        T061 Therapeutic or Preventive Procedure
      T062 Research Activity
        T063 Molecular Biology Research Technique
      T064 Governmental or Regulatory Activity
      T065 Educational Activity
    T066 Machine Activity
  T067 Phenomenon or Process
    T037 Injury or Poisoning
    T068 Human-caused Phenomenon or Process
      T069 Environmental Effect of Humans
    T070 Natural Phenomenon or Process
      T038 Biologic Function
        T039 Physiologic Function
          T040 Organism Function
            T041 Mental Process
          T042 Organ or Tissue Function
          T043 Cell Function
          T044 Molecular Function
            T045 Genetic Function
        T046 Pathologic Function
          T047 Disease or Syndrome
            T048 Mental or Behavioral Dysfunction
            T191 Neoplastic Process
          T049 Cell or Molecular Dysfunction
          T050 Experimental Model of Disease
T071 Entity
  T072 Physical Object
    T001 Organism
      T005 Virus
      T007 Bacterium
      T194 Archaeon
      T204 Eukaryote
        T002 Plant
        T004 Fungus
        T008 Animal
          T010 Vertebrate
            T011 Amphibian
            T012 Bird
            T013 Fish
            T014 Reptile
            T015 Mammal
              T016 Human
    T017 Anatomical Structure
      T018 Embryonic Structure
      T021 Fully Formed Anatomical Structure
        T023 Body Part, Organ, or Organ Component
        T024 Tissue
        T025 Cell
        T026 Cell Component
        T028 Gene or Genome
      T190 Anatomical Abnormality
        T019 Congenital Abnormality
        T020 Acquired Abnormality
    T073 Manufactured Object
      T074 Medical Device
        T203 Drug Delivery Device
      T075 Research Device
      T200 Clinical Drug
    T167 Substance
      T031 Body Substance
      T103 Chemical
        T104 Chemical Viewed Structurally
          T109 Organic Chemical
            T114 Nucleic Acid, Nucleoside, or Nucleotide
            T116 Amino Acid, Peptide, or Protein
          T196 Element, Ion, or Isotope
          T197 Inorganic Chemical
        T120 Chemical Viewed Functionally
          T121 Pharmacologic Substance
            T195 Antibiotic
          T122 Biomedical or Dental Material
          T123 Biologically Active Substance
            T125 Hormone
            T126 Enzyme
            T127 Vitamin
            T129 Immunologic Factor
            T192 Receptor
          T130 Indicator, Reagent, or Diagnostic Aid
          T131 Hazardous or Poisonous Substance
      T168 Food
  T077 Conceptual Entity
    T032 Organism Attribute
      T201 Clinical Attribute
    T033 Finding
      T034 Laboratory or Test Result
      T184 Sign or Symptom
    T078 Idea or Concept
      T079 Temporal Concept
      T080 Qualitative Concept
      T081 Quantitative Concept
      T082 Spatial Concept
        T029 Body Location or Region
        T030 Body Space or Junction
        T083 Geographic Area
        T085 Molecular Sequence
          T086 Nucleotide Sequence
          T087 Amino Acid Sequence
          T088 Carbohydrate Sequence
      T169 Functional Concept
        T022 Body System
    T090 Occupation or Discipline
      T091 Biomedical Occupation or Discipline
    T092 Organization
      T093 Health Care Related Organization
      T094 Professional Society
      T095 Self-help or Relief Organization
    T096 Group
      T097 Professional or Occupational Group
      T098 Population Group
      T099 Family Group
      T100 Age Group
      T101 Patient or Disabled Group
    T102 Group Attribute
    T170 Intellectual Product
      T089 Regulation or Law
      T185 Classification
    T171 Language
"""

ST21PV_TYPES = (
    "T005", "T007", "T017", "T022", "T031", "T033", "T037", "T038", "T058", "T062", "T074",
    "T082", "T091", "T092", "T097", "T098", "T103", "T168", "T170", "T201", "T204",
)  # fmt: skip
"""The 21 types of MedMentions ST21pv; a concept counts if one of its types is one of these or lies below one."""

ST21PV_SOURCES = (
    "CPT", "FMA", "GO", "HGNC", "HPO", "ICD10", "ICD10CM", "ICD9CM", "MDR", "MSH", "MTH", "NCBI", "NCI", "NDDF",
    "NDFRT", "OMIM", "RXNORM", "SNOMEDCT_US",
)  # fmt: skip
"""The 18 source vocabularies of MedMentions ST21pv."""

OKB_TYPES = ("T041", "T093", "T196", "T074", "T058", "T060", "T097", "T059", "T089", "T092", "T094")
"""The 11 types that the paper turns into NIL. Their descendants stay, as in the paper."""


@lru_cache(maxsize=1)
def _table() -> tuple[dict[str, str], dict[str, str]]:
    """Name and parent by id."""
    names: dict[str, str] = {}
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in _TREE.splitlines():
        type_id, name = line.split(maxsplit=1)
        depth = (len(line) - len(line.lstrip())) // 2
        path[depth:] = [type_id]
        names[type_id] = name
        parents[type_id] = path[depth - 1] if depth else ""
    return names, parents


def type_names() -> dict[str, str]:
    """Name by id, for all 127 types."""
    return _table()[0]


def type_name(type_id: str) -> str:
    """The name of a type id; anything else stays as it is."""
    return _table()[0].get(type_id, type_id)


def with_descendants(type_ids: Iterable[str]) -> frozenset[str]:
    """The types and everything below them in the tree."""
    wanted = set(type_ids)
    parents = _table()[1]

    def is_below(type_id: str) -> bool:
        while type_id:
            if type_id in wanted:
                return True
            type_id = parents[type_id]
        return False

    return frozenset(filter(is_below, parents))


def _with_id(key: str, name: str) -> str:
    """A type that was found by its id is shown with it: the name alone looks like nothing that was typed."""
    return f"{key.upper()} {name}" if key.upper() in type_names() else name


def find_types(wanted: Iterable[str], known: Iterable[str], option: str) -> list[str]:
    """The known types a user named, in any case, by name or by UMLS type id; an unknown one gets the nearest names."""
    by_key = {name.casefold(): name for name in known}
    for type_id, name in type_names().items():
        if name.casefold() in by_key:
            by_key.setdefault(type_id.casefold(), by_key[name.casefold()])
    found = []
    words = [word.strip() for word in wanted]
    while words:
        # A name may hold commas, at which the command line has cut it.
        sizes = range(len(words), 0, -1)
        size = next((size for size in sizes if ", ".join(words[:size]).casefold() in by_key), 0)
        if not size:
            near = difflib.get_close_matches(words[0].casefold(), by_key, n=6, cutoff=0.5)
            names = list({by_key[key]: _with_id(key, by_key[key]) for key in near}.values())[:3]
            names = names or sorted(set(by_key.values()))[:5]
            raise SettingsError(f"{option}: no type {words[0]!r} here. Nearest: {'; '.join(names)}")
        found.append(by_key[", ".join(words[:size]).casefold()])
        words = words[size:]
    return found
