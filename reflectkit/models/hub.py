"""Whether the model hub can be reached, asked before a library spends a minute on retries."""

from __future__ import annotations

import functools
import threading
from typing import Any

from reflectkit.core.errors import CheckpointError

PATIENCE = 3.0  # seconds


def hub_options(name: str) -> dict[str, Any]:
    """What `from_pretrained` needs to load hub id `name`: nothing, or to use only what was downloaded earlier.

    Raises CheckpointError if `name` was not downloaded and the hub cannot be reached; this takes at most `PATIENCE`.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    fault = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _fault(constants.ENDPOINT)
    if not fault:
        return {}
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return {"local_files_only": True}
    raise CheckpointError(
        f"{name} is neither a folder nor a downloaded model (in {constants.HF_HUB_CACHE}), and {fault}; where there is"
        f" a network, run `hf download {name} --local-dir {name}`, copy the folder here, and give its path, e.g."
        f" ./{name}"
    )


@functools.cache
def _fault(endpoint: str) -> str:
    """Why there is no answer from `endpoint`; empty if there is any answer."""
    from huggingface_hub import get_session

    faults = [f"{endpoint} did not answer in {PATIENCE:.0f} s"]

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=PATIENCE, follow_redirects=False)
            faults.append("")
        except Exception as error:  # no name, no route, refused, a proxy that forbids it, …
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
            faults.append(f"{endpoint} cannot be reached ({reason})")

    asking = threading.Thread(target=ask, daemon=True)  # the timeout does not cover looking up the name
    asking.start()
    asking.join(PATIENCE)
    return faults[-1]
