"""The token that a cluster wants to see: Ray is told to show it before it is imported, for then it reads this once."""

from __future__ import annotations

import os
from pathlib import Path

from pel_ray.errors import JobError

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def show_token() -> None:
    """Who has a token means to show it, unless the environment says otherwise."""
    token, path = os.environ.get(TOKEN), os.environ.get(TOKEN_PATH)
    if not token and not path:
        return
    os.environ.setdefault(MODE, "token")
    if path and not token and os.environ[MODE] == "token" and not Path(path).is_file():
        raise JobError(
            f"{TOKEN_PATH} is {path}, where there is no file. Expected one that holds the cluster's token: write it "
            f"there, or set {TOKEN} to the token itself"
        )
