"""pel-ray submit, status, logs and stop: commands on a cluster, through Ray's job server."""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from pel_ray import console
from pel_ray.cli.options import split_address
from pel_ray.cli.told import told_by
from pel_ray.errors import InputError, SettingsError
from pel_ray.job_package import EXCLUDES, Package, make_package
from pel_ray.job_specs import files_to_send
from pel_ray.kuberay import IMAGE, job_manifests, manifest_text
from pel_ray.spec import read_spec
from pel_ray.storage import Location, locate, locate_file
from pel_ray.submission import JobServer, JobState, equivalent_line, run_job

NOT_FOR_A_CLUSTER = ("submit", "status", "logs", "stop")
SPEC_ENDINGS = (".yaml", ".yml")


def _named(context: click.Context, parameter: click.Parameter, job: str | None) -> str | None:
    if job == "":
        raise click.BadParameter("is empty; `pel-ray status` lists the jobs of a cluster", context, parameter)
    return job


_address = click.option(
    "--address",
    metavar="URL",
    envvar="RAY_API_SERVER_ADDRESS",
    help="The job server of the cluster, such as http://head:8265.  [default: RAY_API_SERVER_ADDRESS]",
)


@click.command(
    "submit",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: pel-ray submit --address http://head:8265 jobs/encode-kb.yaml /shared/hpo --out /shared/vectors",
)
@_address
@click.option("--retries", default=0, type=click.IntRange(0), help="How often to submit a job that failed again.")
@click.option("--no-follow", is_flag=True, help="Print the id of the job and leave it to itself.")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="What else not to send; as in .gitignore.")
@click.option("--print", "only_print", is_flag=True, help="Print the equivalent `ray job submit` line, and stop.")
@click.option("--kuberay", metavar="FILE", help="Write a KubeRay RayJob manifest instead of submitting.")
@click.option("--image", default=IMAGE, show_default=True, help="With --kuberay: what the pods run.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def submit(
    address: str | None,
    retries: int,
    no_follow: bool,
    exclude: tuple[str, ...],
    only_print: bool,
    kuberay: str | None,
    image: str,
    command: tuple[str, ...],
) -> None:
    """Run a pel-ray command on a cluster: COMMAND is its command line, or a job spec that names one.

    The working directory goes along without data, runs, .git and caches; the log is shown as it grows and the exit code
    is that of the command. Folders must be absolute paths on storage that all nodes share, or s3:// URIs.
    """
    words, behind = split_address(command_of(command))
    address = behind or address
    if kuberay is not None and only_print:
        raise click.UsageError("--kuberay writes a file and --print a line: give one of them")
    if kuberay is not None:
        _check_replaceable(locate(kuberay))
        told = told_by(words)
        told.check_for_pods()
        files = files_to_send(told.specs)
        manifests = job_manifests(told.words, files, image=image, retries=retries, workers=told.pods())
        locate(kuberay).write_bytes(manifest_text(manifests).encode())
        console.say(f"{kuberay}: run it with kubectl apply -f {shlex.quote(kuberay)}")
        return
    if only_print:
        told = told_by(words)
        told.check_for_job(make_package(Path(), exclude))
        click.echo(equivalent_line(_given(address), ["pel-ray", *told.words], ".", [*EXCLUDES, *exclude]))
        return
    if no_follow and retries:
        raise click.UsageError("--retries needs somebody to see that the job failed: leave out --no-follow")
    submit_words(_given(address), words, retries=retries, follow=not no_follow, exclude=exclude)


def submit_words(
    address: str, words: Sequence[str], *, retries: int = 0, follow: bool = True, exclude: Sequence[str] = ()
) -> None:
    """Runs a command on a cluster and exits as it does; `--address` on a command itself comes here too."""
    told = told_by(words)
    package = make_package(Path(), exclude)
    told.check_for_job(package)
    _run(JobServer(address), shlex.join(["pel-ray", *told.words]), package, retries, follow)


def _run(server: JobServer, entrypoint: str, package: Package, retries: int, follow: bool) -> None:
    console.say(f"sending the working directory: {package}")
    if not follow:
        job = server.submit(entrypoint, package)
        _begun(job)
        console.say(f"follow it with: pel-ray logs --address {server.address} --follow {job}")
        return
    jobs: list[str] = []

    def begun(job: str) -> None:
        jobs.append(job)
        _begun(job)

    def again(why: str) -> None:
        jobs.clear()
        console.say(why)

    def follow_it() -> JobState:
        return run_job(server, entrypoint, package, retries=retries, begun=begun, again=again, show=_show_log)

    _finish(server, interruptible(follow_it, server, jobs))


def _begun(job: str) -> None:
    console.say(f"submitted job {job}")


@click.command("status", epilog="Example: pel-ray status --address http://head:8265 raysubmit_4LamXRuQpYdSMg7J")
@_address
@click.argument("job", required=False, callback=_named)
def status(address: str | None, job: str | None) -> None:
    """Say how far a job is and, if it failed, its last lines; without JOB, list all jobs."""
    server = JobServer(_given(address))
    if job is None:
        rows = [(state.job, state.status.lower(), state.exit_code, state.entrypoint) for state in server.states()]
        console.show_table(("job", "status", "exit code", "command"), rows, num_text_columns=4)
        return
    state = server.state(job)
    console.say(f"{state}: {state.entrypoint}")
    if state.status == "FAILED":
        _show_failure(server, state)


@click.command("logs", epilog="Example: pel-ray logs --address http://head:8265 --follow raysubmit_4LamXRuQpYdSMg7J")
@_address
@click.option("--follow", is_flag=True, help="Go on until the job has ended, and exit with its code.")
@click.argument("job", callback=_named)
def logs(address: str | None, follow: bool, job: str) -> None:
    """Show what a job has written."""
    server = JobServer(_given(address))
    if not follow:
        _show_log(server.log(job))
        return
    _finish(server, interruptible(lambda: server.follow(job, _show_log), server, [job]))


@click.command("stop", epilog="Example: pel-ray stop --address http://head:8265 raysubmit_4LamXRuQpYdSMg7J")
@_address
@click.argument("job", callback=_named)
def stop(address: str | None, job: str) -> None:
    """End a job; what it has finished stays, and submitting it again goes on from there."""
    server = JobServer(_given(address))
    console.say(f"stopping job {job}" if server.stop(job) else f"{server.state(job)} already")


def command_of(words: Sequence[str]) -> list[str]:
    """The words of a pel-ray command, which a job spec in their place names in its first lines."""
    from pel_ray.cli import COMMANDS

    first, *rest = words
    if first.endswith(SPEC_ENDINGS):
        return [*_command_of_spec(first), *rest]
    if first == "pel-ray" and rest:
        return command_of(rest)
    if first not in COMMANDS or first in NOT_FOR_A_CLUSTER:
        known = [name for name in COMMANDS if name not in NOT_FOR_A_CLUSTER]
        near = difflib.get_close_matches(first, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}, or a job spec"
        raise click.UsageError(f"{first!r} is no command to submit; {hint}")
    return list(words)


def _command_of_spec(path: str) -> list[str]:
    """`train --spec FILE` for a file that says `# Command   pel-ray train --spec ...` at its top."""
    read_spec(path)
    file = locate_file(path)
    for line in file.read_bytes().decode().splitlines():
        where = r"(?:\S*|['\"].*)" + re.escape(file.name)
        found = re.match(r"#.*\bpel-ray ((?:[a-z][a-z-]* ){1,2})(--spec )?" + where, line)
        if found:
            return [*found[1].split(), *(["--spec"] if found[2] else []), path]
    example = f"train --spec {shlex.quote(path)}"
    raise SettingsError(
        f"{path}: does not say which command it is for. Name it, as in `submit -- {example}`, or at the top of the "
        f"file: `# Command   pel-ray {example}`"
    )


def _check_replaceable(file: Location) -> None:
    """A manifest may be written again; a spec that was given in its place would be gone."""
    if file.is_file() and b"kind: RayJob" not in file.read_bytes():
        raise InputError(str(file), "is something else than a RayJob manifest. Give --kuberay the name of a new file")


def _given(address: str | None) -> str:
    if address is None:
        raise click.UsageError("--address is missing: the job server of the cluster, such as http://head:8265")
    return address


def interruptible(follow: Callable[[], JobState], server: JobServer, jobs: Sequence[str]) -> JobState:
    """`jobs` are those that were submitted by the time that it is stopped, the last one running."""
    try:
        return follow()
    except KeyboardInterrupt:
        for job in jobs[-1:]:
            said = f"see `pel-ray status --address {server.address} {job}`, or `stop` it"
            click.echo(f"job {job} goes on; {said}", err=True)
        raise


def _finish(server: JobServer, state: JobState) -> None:
    if state.code:
        _show_failure(server, state)
    else:
        console.say(str(state))
    sys.exit(state.code)


def _show_failure(server: JobServer, state: JobState) -> None:
    lines = server.last_lines(state.job)
    # A command that did not start has left no code, and Ray says why.
    why = f": {state.message}" if state.exit_code is None or not lines else ""
    click.echo(f"pel-ray: {state}{why}{'; its last lines:' if lines else ''}", err=True)
    for line in lines:
        click.echo(f"    {line}", err=True)


def _show_log(text: str) -> None:
    click.echo(text, nl=False)
