"""The questions that docs/evidence.md answers, in its order, and the files that answer each."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["QUESTIONS", "Question", "anchor", "question_of"]


@dataclass(frozen=True)
class Question:
    """One section of docs/evidence.md."""

    heading: str
    #: JSON files of docs/evidence, without their suffix; each belongs to one question.
    files: tuple[str, ...]


QUESTIONS = {
    "sweep": Question("Does it find a rate as good as a sweep's?", ("excess", "regret", "regret-cpu")),
    "zoo": Question("On tasks nobody chose", ("zoo", "zoo-ablation", "zoo-choice", "zoo-finders")),
    "data": Question("Does it in fine-tuning, and on few data?", ()),
    "peers": Question("How does it stand beside others that ask for no rate?", ()),
    "optimizers": Question("Does it with other optimizers, and in a long run?", ("excess-optimizers",)),
    "others": Question(
        "How does it do on problems that others made?", ("lightbench", "deepobs", "pretrained")
    ),
    "cost": Question(
        "What does it cost?",
        (
            *("autolr", "autolr-cuda", "large", "zoo-cost"),
            *("step", "step-cuda", "converge", "converge-16-cores"),
        ),
    ),
    "several": Question(
        "Does one run tune several hyperparameters?", ("autotune", "hyperparameters", "delay")
    ),
    "replicas": Question(
        "What do replicas add?", ("zoo-replicas", "fan-out", "replicas", "stacked", "stacked-cpu")
    ),
    "paper": Question(
        "Does the paper hold?",
        (
            *("table1", "table1-kuairand", "figure2", "figure2-kuairand"),
            *("figure3", "figure3-kuairand", "pretraining", "feed", "paper"),
        ),
    ),
    "faults": Question("Does it survive faults?", ("chaos",)),
    "scale": Question("Does it scale?", ("scale",)),
}


def question_of(file: str) -> str:
    """The question that a file answers."""
    for name, question in QUESTIONS.items():
        if file in question.files:
            return name
    raise LookupError(
        f"docs/evidence/{file}.json answers no question: name one in benchmarks/tools/claims/questions.py"
    )


def anchor(heading: str) -> str:
    """What a link to a heading ends with, on GitHub and in MyST.

    >>> anchor("What does it cost?")
    'what-does-it-cost'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
