r"""Arithmetic: prompts of a data set, and two reward functions in TRL's form, the second with a weight of 0.2.

    reflectkit rlft --env prompts --dataset examples/arithmetic.jsonl --reward examples/arithmetic.py:exact \
        --reward examples/arithmetic.py:is_number=0.2 --model Qwen/Qwen2.5-0.5B-Instruct --lora-r 16
    reflectkit evaluate --env prompts --dataset examples/arithmetic.jsonl --reward examples/arithmetic.py:exact \
        --policy results/1_rlft --policy start=Qwen/Qwen2.5-0.5B-Instruct
"""

import re


def exact(completions, answer, **kwargs):
    """1 for the right number."""
    return [float(text.strip() == right) for text, right in zip(completions, answer, strict=True)]


def is_number(completions, **kwargs):
    """1 for any number, and nothing else."""
    return [float(re.fullmatch(r"\s*-?\d+\s*", text) is not None) for text in completions]
