"""`generate` for slime's own contract tests, whose arguments and sample are nearly empty: the test that starts them
puts what is missing into the environment, as JSON. As a pytest plug-in it imports transformers before they replace it
by a stub.
"""

from __future__ import annotations

import json
import os
from typing import Any

import transformers  # noqa: F401

from reflectkit.integrations import slime as plugin


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any]) -> Any:
    from slime.utils.http_utils import init_http_client

    missing = json.loads(os.environ["REFLECTKIT_CONTRACT"])
    for name, value in missing["args"].items():
        setattr(args, name, value)
    init_http_client(args)
    sample.metadata = missing["metadata"]
    return await plugin.generate(args, sample, {**sampling_params, "max_new_tokens": 100})
