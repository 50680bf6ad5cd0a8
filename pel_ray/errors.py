"""The errors a user can cause or mend.

PelRayError
├── InputError       a source file that does not hold what it should
│   └── BadRecord    one record of it, which --on-error skip leaves out
├── SettingsError    a job spec, --set or option that cannot be meant
├── ArtifactError    a folder that holds other, unfinished or damaged work
├── StorageError     a disk or bucket that refuses to be read or written
├── ResourceError    more CPUs, GPUs or memory asked for than there are
├── TrainingError    a training that cannot go on, such as a loss that is no number
├── JobError         a job server that does not answer or refuses us, or a job it does not know
├── StepFailed       a step of a pipeline, with how to go on from there
└── MissingPackage   an optional package that this command needs

The command line prints any of these as one line and exits 1. Everything else is a bug and keeps its
traceback.
"""


class PelRayError(Exception):
    """Something a user can mend; its text says what was found, what was expected and what to do."""


class InputError(PelRayError):
    """A source file that does not hold what it should; `where` is the file, with a line if there is one."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")


class BadRecord(InputError):
    """One record that cannot be used; `reason` is what the closing table counts it under."""

    def __init__(self, where: str, reason: str, problem: str) -> None:
        super().__init__(where, problem)
        self.reason = reason


class SettingsError(PelRayError):
    """A job spec, --set or option that cannot be meant."""


class ArtifactError(PelRayError):
    """A folder that holds other, unfinished or damaged work."""


class StorageError(PelRayError):
    """A disk or bucket that refuses to be read or written."""


class ResourceError(PelRayError):
    """More CPUs, GPUs or memory asked for than there are."""


class TrainingError(PelRayError):
    """A training that cannot go on, such as a loss that is no number."""


class JobError(PelRayError):
    """A job server that does not answer or refuses us, or a job it does not know."""


class StepFailed(PelRayError):
    """A step of a pipeline that failed; its text ends with how to go on from there."""


class MissingPackage(PelRayError):
    """An optional package that this command needs."""
