"""pel-ray doctor."""

from __future__ import annotations

import sys

import click

from pel_ray import console
from pel_ray.cli.options import ClusterCommand
from pel_ray.steps.doctor import examine


@click.command("doctor", cls=ClusterCommand, epilog="Example: pel-ray doctor")
def command() -> None:
    """Say what this machine has, what is missing and how to get it. Exit code 1 if pel-ray cannot work."""
    findings = examine()
    console.show_table(("", ""), [(finding.name, finding.found) for finding in findings], num_text_columns=2)
    missing = [finding for finding in findings if finding.remedy]
    console.say()
    for finding in missing:
        need = "needed" if finding.is_required else "optional"
        console.say(f"{finding.name} ({need}): {finding.remedy}")
    if any(finding.is_required for finding in missing):
        sys.exit(1)
    console.say("Ready." if not missing else "Ready, but for what is optional.")
