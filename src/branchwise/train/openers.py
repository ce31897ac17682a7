"""How a user's turn begins: seeded sentences of many kinds, which the target then finishes and answers.

Our own sentences, put together from lists; no prompt of any test set. Knows words and chance; knows no model and no
tokenizer. An opener is a pure function of (seed, number), passages apart: those are texts that somebody else supplies,
for instance answers the target wrote earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from .topics import (
    CODE_TASKS,
    LANGUAGES,
    NAMES,
    PEOPLE,
    PLACES,
    PROGRAMMING_LANGUAGES,
    SUBJECTS,
    TEXT_FORMS,
    THINGS,
    TONES,
)

#: raised when this file would write other openers from the same seed, so that data are not continued with them
RECIPE: Final = 2


@dataclass(frozen=True)
class Opener:
    """The beginning of a user's turn.

    Attributes:
        kind: what results are grouped by.
        text: what the user says; may be empty.
        is_complete: the turn ends with ``text``. Otherwise the target writes on.
        most_tokens: about how many tokens the target may add to the turn.
    """

    kind: str
    text: str
    is_complete: bool = False
    most_tokens: int = 72


#: gives so many passages, or fewer when there are none yet
Passages = Callable[[Random, int], Sequence[str]]


def no_passages(chance: Random, count: int) -> Sequence[str]:
    """For when there are none."""
    return ()


class OpenerBook:
    """All openers of one seed.

    Args:
        seed: another seed, other openers.
        passages: longer texts for questions about a text; where there are none, the target writes its own.
    """

    def __init__(self, seed: int, passages: Passages = no_passages) -> None:
        self._seed = seed
        self._passages = passages

    def opener(self, number: int) -> Opener:
        """The opener of dialogue ``number``."""
        chance = Random(f"opener {self._seed} {number}")
        kind = chance.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
        return KINDS[kind][1](chance, self._passages)


def _question(chance: Random, _: Passages) -> Opener:
    subject = chance.choice(SUBJECTS)
    text = chance.choice(
        (
            f"What is the most important thing to know about {subject}",
            f"Question about {subject}:",
            f"I have been reading about {subject}. Why",
            "Who",
            "When did",
            "Which",
            "Where",
            "How many",
            "Is it true that",
            "What is the difference between",
            f"In the history of {subject}, what",
            f"How does {subject}",
            f"What would happen if {subject}",
            "Answer in one sentence: what",
            "True or false:",
        )
    )
    return Opener("question", text, most_tokens=40)


def _explain(chance: Random, _: Passages) -> Opener:
    subject, person = chance.choice(SUBJECTS), chance.choice(PEOPLE)
    text = chance.choice(
        (
            f"Explain {subject} to {person}",
            f"Explain step by step how {subject}",
            f"Give me five facts about {subject}",
            f"What are the advantages and disadvantages of {subject}",
            f"Compare {subject} and {chance.choice(SUBJECTS)}",
            f"Describe {subject} in simple words, then",
            f"What are common misconceptions about {subject}",
            f"Teach me about {subject}. Start with",
            f"Why does {subject} matter for {person}",
            "List the main causes of",
            "Define the following terms:",
        )
    )
    return Opener("explain", text, most_tokens=48)


def _write(chance: Random, _: Passages) -> Opener:
    form, tone = chance.choice(TEXT_FORMS), chance.choice(TONES)
    article, noun = form.partition(" ")[::2]
    tone_form = f"a {tone}{noun}" if tone and article in ("a", "an") else form
    person, place, subject = chance.choice(PEOPLE), chance.choice(PLACES), chance.choice(SUBJECTS)
    text = chance.choice(
        (
            f"Write {tone_form} about {subject}",
            f"Write {tone_form} set in {place}",
            f"Write {tone_form} from {person} to {chance.choice(PEOPLE)}",
            f"Help me write {tone_form} about {subject}. It should",
            f"Compose {tone_form} in which {person}",
            f"Draft {tone_form} for {person} who",
            f"Continue this text: {chance.choice(NAMES)} had never been to {place}, but",
            f"Rewrite the following sentence so that it sounds {tone or 'natural '}:",
            f"Suggest ten titles for {tone_form} about {subject}",
            "Edit this paragraph and correct the mistakes:",
        )
    )
    return Opener("write", text, most_tokens=64)


def _maths(chance: Random, _: Passages) -> Opener:
    name, other = chance.sample(NAMES, 2)
    thing = chance.choice(THINGS)
    few, many, percent = (
        chance.randint(2, 15),
        chance.randint(12, 240),
        chance.choice((5, 10, 15, 20, 25, 30, 40, 50, 75)),
    )
    text = chance.choice(
        (
            f"{name} has {many} {thing}. {other}",
            f"{name} buys {few} {thing} for ${chance.randint(1, 30)} each and",
            f"A shop sells {thing} at ${few}.{chance.choice(('25', '50', '75', '99'))} each. {name} wants",
            f"{name} works {few} hours a day and earns",
            f"A train leaves at {chance.randint(5, 11)}:{chance.choice(('00', '15', '30', '45'))} and",
            f"There are {many} {thing} in {few} boxes.",
            f"The price of a bicycle is reduced by {percent}%.",
            f"In a class of {chance.randint(18, 36)} students, {percent}%",
            f"{name} is {few + 5} years older than {other}. In {few} years",
            f"A rectangle is {few} cm wide and",
            f"Solve for x: {few}x {chance.choice('+-')} {many} =",
            f"Calculate {many} {chance.choice(('+', '-', '*', '/'))} {few}",
            f"What is {percent}% of {many}",
            f"A recipe for {few} people needs",
            f"Find the next number in the sequence {few}, {few * 2},",
            f"{name} drives {many} miles in {few} hours.",
            "Simplify the expression",
            "What is the probability that",
        )
    )
    return Opener("maths", text, most_tokens=72)


def _code(chance: Random, _: Passages) -> Opener:
    language, task = chance.choice(PROGRAMMING_LANGUAGES), chance.choice(CODE_TASKS)
    text, complete = chance.choice(
        (
            (f"Write a {language} function that {task}.", True),
            (f"Write a {language} program that {task}. It should", False),
            (f"In {language}, how do I", False),
            (f"What does this {language} code do?\n\n```{language.lower()}\n", False),
            (f"Fix the bug in this {language} code:\n\n```{language.lower()}\n", False),
            ("Explain the difference between", False),
            (f"Write unit tests for a {language} function that {task}.", True),
            (f"Write a {language} class that represents", False),
            ("Give me a regular expression that", False),
            ("Write an SQL query that", False),
            ("Write a simple HTML page with", False),
            (f"Show the steps of an algorithm that {task}, then implement it in {language}.", True),
            (f"Complete this function:\n\n```python\ndef {task.split()[0]}_", False),
        )
    )
    return Opener("code", text, complete, 96)


def _translate(chance: Random, _: Passages) -> Opener:
    language = chance.choice(LANGUAGES[:6] if chance.random() < 0.7 else LANGUAGES)
    text = chance.choice(
        (
            f"Translate this {language} sentence into English:\n",
            f"Please translate the following from {language} to English.\n\n",
            f"What does this mean in English? It is {language}:",
            f'Translate into {language}: "',
            f"How do you say this in {language}:",
            f"Give me the English translation of the {language} text below.\n\n",
            f"List ten {language} words about {chance.choice(SUBJECTS)} with their English meaning",
        )
    )
    return Opener("translate", text, most_tokens=64)


def _summarise(chance: Random, passages: Passages) -> Opener:
    found = passages(chance, chance.choice((1, 1, 2, 3, 4)))  # an article is often longer than an answer
    order = chance.choice(
        (
            "Summarise the following text in a few sentences.",
            "Give me a short summary of this article:",
            "What are the key points of this text?",
            "Shorten this passage to its essentials:",
            "Write a headline and a two-sentence summary for the text below.",
            "TL;DR of the following?",
        )
    )
    if found:
        return Opener("summarise", f"{order}\n\n{_joined(found)}", is_complete=True)
    subject = chance.choice((*SUBJECTS, *PLACES))
    return Opener("summarise", f"{order}\n\nA report on {subject}.", most_tokens=224)


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(texts)


def _documents(chance: Random, passages: Passages) -> Opener:
    found = passages(chance, chance.choice((1, 2, 3, 4, 5)))
    order = chance.choice(
        (
            "Answer the question with the help of these documents.",
            "Use the context to answer the question at the end.",
            "Read the text and answer the question.",
            "Here is some background. Answer from it only.",
        )
    )
    ask = chance.choice(
        ("Question: What", "Question: Why", "Question: How", "Question:", "Question: Who", "Question: Which")
    )
    if found:
        texts = _joined([f"[{place}] {text}" for place, text in enumerate(found, start=1)])
        return Opener("documents", f"{order}\n\n{texts}\n\n{ask}", most_tokens=32)
    return Opener("documents", f"{order}\n\nContext: A text about {chance.choice(SUBJECTS)}.", most_tokens=224)


def _rework(chance: Random, passages: Passages) -> Opener:
    found = passages(chance, chance.choice((1, 1, 2)))
    if not found:
        return _everyday(chance, passages)
    order = chance.choice(
        (
            "Rewrite this text in a friendlier tone:",
            "Turn the following text into a list of bullet points.",
            "Rewrite the text below for a child.",
            "Extract all names, places and numbers from this text:",
            "Correct the grammar of the following text and repeat it in full.",
            "Repeat the following text word for word:",
            "Continue the text below.",
            "Write three questions that this text answers, with their answers.",
            "Is the mood of this text positive, negative or neutral? Explain.",
        )
    )
    return Opener("rework", f"{order}\n\n{_joined(found)}", is_complete=True)


def _everyday(chance: Random, _: Passages) -> Opener:
    subject, place, person = chance.choice(SUBJECTS), chance.choice(PLACES), chance.choice(PEOPLE)
    text = chance.choice(
        (
            f"Plan a weekend in {place} for",
            "Give me a checklist for",
            f"I am {person} and I need advice:",
            "What should I cook with",
            f"Suggest a gift for {person} who likes {subject}",
            "Make a table that compares",
            "Classify each of these as",
            f"Pretend you are {person} in {place}.",
            f"You are an expert on {subject}.",
            "Act as an interviewer for a job as",
            "How can I get better at",
            "My friend thinks that",
            "Let's play a game:",
            "Hello!",
            f"Give me three ideas for a project about {subject}",
            f"Create a weekly schedule for {person}",
            f"Here are three statements about {subject}. Which one is wrong?\n1.",
            "Put these events in the right order:",
            "Return a JSON object with the fields",
            "All of the following answers must be short.",
        )
    )
    return Opener("everyday", text, most_tokens=56)


def _free(chance: Random, _: Passages) -> Opener:
    return Opener("free", "", most_tokens=80)


#: kind -> its share (they add up to 100) and how one is made
KINDS: Final[dict[str, tuple[int, Callable[[Random, Passages], Opener]]]] = {
    "question": (14, _question),
    "explain": (11, _explain),
    "write": (12, _write),
    "maths": (12, _maths),
    "code": (11, _code),
    "translate": (8, _translate),
    "summarise": (9, _summarise),
    "documents": (9, _documents),
    "rework": (5, _rework),
    "everyday": (7, _everyday),
    "free": (2, _free),
}
