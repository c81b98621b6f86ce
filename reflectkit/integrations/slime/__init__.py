"""Our environments inside slime (github.com/THUDM/slime), which trains large models with Megatron
and SGLang.

slime finds each function by its dotted path:

    --custom-generate-function-path reflectkit.integrations.slime.generate
    --custom-reward-post-process-path reflectkit.integrations.slime.normalise_rewards
    --dynamic-sampling-filter-path reflectkit.integrations.slime.keep_group
    --custom-rollout-log-function-path reflectkit.integrations.slime.log_rollout
    --custom-eval-rollout-log-function-path reflectkit.integrations.slime.log_evaluation

`python -m reflectkit.integrations.slime --env support` writes the prompt data, and docs/slime.md
has the launch. slime and torch are imported when a function is called.
"""

from __future__ import annotations

from reflectkit.integrations.slime.episodes import generate
from reflectkit.integrations.slime.rewards import (
    keep_group,
    log_evaluation,
    log_rollout,
    normalise_rewards,
)

__all__ = ["generate", "keep_group", "log_evaluation", "log_rollout", "normalise_rewards"]
