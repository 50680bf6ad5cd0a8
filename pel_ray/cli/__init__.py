"""The command line. Nothing heavy is imported until a command runs, so that --help answers at once."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from typing import NoReturn

import click

from pel_ray import __version__
from pel_ray.cli.lazy import LazyGroup
from pel_ray.errors import PelRayError

COMMANDS = {
    "import": (
        "pel_ray.cli.imports:group",
        "Bring a KB or annotated text in: OBO, UMLS, PubTator, ZESHEL, JSON lines.",
    ),
    "encode-kb": ("pel_ray.cli.encode_kb:command", "Turn the entities of a KB into vectors."),
    "index": ("pel_ray.cli.index:command", "Build a FAISS index from vectors and measure its recall."),
    "mine": ("pel_ray.cli.mine:command", "Find hard negatives for the training mentions."),
    "train": ("pel_ray.cli.train:command", "Train a retriever with the Pb or CE loss."),
    "evaluate": ("pel_ray.cli.evaluate:command", "Measure a retriever on a split, beside baselines, NIL included."),
    "rank": ("pel_ray.cli.rank:group", "Train and evaluate a ranker over a retriever's candidates, or learn from it."),
    "link": ("pel_ray.cli.link:command", "Link mentions in text to the KB: PubTator, JSON lines, [[marked]] text."),
    "report": ("pel_ray.cli.report:command", "Make one HTML page of runs and evaluations."),
    "curves": ("pel_ray.cli.curves:command", "Draw the curves of several training runs into one figure."),
    "okb": ("pel_ray.cli.okb:command", "Make a data set with NILs by taking entities out of its KB."),
    "show": ("pel_ray.cli.show:command", "Show what a folder holds."),
    "run": ("pel_ray.cli.run:command", "Carry out a pipeline spec: several commands, resumable."),
    "submit": ("pel_ray.cli.jobs:submit", "Run a command on a cluster, through Ray's job server."),
    "status": ("pel_ray.cli.jobs:status", "Say how far the jobs of a cluster are."),
    "logs": ("pel_ray.cli.jobs:logs", "Show what a job has written."),
    "stop": ("pel_ray.cli.jobs:stop", "End a job."),
    "quickstart": (
        "pel_ray.cli.quickstart:command",
        "Run the whole flow on the Human Phenotype Ontology, offline.",
    ),
    "doctor": ("pel_ray.cli.doctor:command", "Say what this machine has, what is missing and how to get it."),
}
SECONDS_TO_GO_ON = 0.05


@click.group(
    cls=LazyGroup,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with: pel-ray quickstart",
)
@click.version_option(__version__, prog_name="pel-ray")
def cli() -> None:
    """Link mentions in biomedical text to a knowledge base of thousands to millions of entities.

    Every step reads folders and leaves one finished folder behind; running it again does nothing, and a
    folder of other settings is refused. Folders may be local or s3://, gs:// URIs.
    """


def end_by_signal(number: int, _: object) -> NoReturn:
    """Schedulers stop jobs so: ends as an error does, with what was begun cleared away."""
    shown = sys.unraisablehook

    def again(lost: sys.UnraisableHookArgs) -> None:
        # Python drops an exception that meets it in __del__ or after a fork, and would go on as if nothing had been.
        if isinstance(lost.exc_value, SystemExit):
            # From a thread, for here it would be dropped too.
            later = threading.Timer(SECONDS_TO_GO_ON, os.kill, (os.getpid(), number))
            later.daemon = True
            later.start()
        else:
            shown(lost)

    sys.unraisablehook = again
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line; a user's mistake is one line and exit code 1, wrong usage 2, Ctrl-C 130."""
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), end_by_signal)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = cli.main(args=arguments, prog_name="pel-ray", standalone_mode=False)
    except PelRayError as error:
        click.echo(f"pel-ray: error: {str(error).replace(chr(10), ' ')}", err=True)
        code = 1
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("pel-ray: stopped", err=True)
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does; there is no one left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
