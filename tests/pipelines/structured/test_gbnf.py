"""Grammars in GBNF allow what llama.cpp says that they do."""

from __future__ import annotations

import random

import pytest

from outrider.pipelines import GenerationConfig, InvalidOption, StructuredOutputConfig
from outrider.pipelines.structured.constraint import Constraint

from ..real import Models

END = 0
CHARACTERS = [chr(code) for code in range(32, 127)] + ["\n", "\t", "é", "ß", "日", "😀"]
NAMED = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\", "]": "\\]", "[": "\\["}


def constraint(models: Models, grammar: str) -> Constraint:
    form = StructuredOutputConfig(grammar=grammar)
    made = models.grammars.constraint(GenerationConfig(structured_output_config=form, eos_token_ids={END}))
    assert made is not None
    return made


def allows(models: Models, asked: Constraint, text: str) -> bool:
    """Whether a text, however it is cut into tokens, is a whole answer."""
    ids = models.tokenizer.encode(text, add_special_tokens=False)
    if not all(asked.allows(ids[:i], token) for i, token in enumerate(ids)):
        return False
    return asked.is_complete(ids) or asked.allows(ids, END)


def written(character: str, rng: random.Random, plain: bool = True) -> str:
    """One of the ways in which GBNF can hold a character."""
    code = ord(character)
    ways = [f"\\U{code:08x}"]
    if code < 0x10000:
        ways.append(f"\\u{code:04X}")
    if code < 0x80:
        ways.append(f"\\x{code:02x}")
    if character in NAMED:
        ways.append(NAMED[character])
    elif plain:
        ways.append(character)
    return rng.choice(ways)


@pytest.mark.parametrize("seed", range(12))
def test_a_class_holds_its_characters_and_ranges(models: Models, seed):
    rng, held = random.Random(seed), set()
    is_negated, parts = rng.random() < 0.3, []
    for i in range(rng.randint(1, 6)):
        if rng.random() < 0.4:
            first, last = sorted(rng.sample(range(32, 127), 2))
            ends = (written(chr(code), rng, chr(code) not in "-^") for code in (first, last))
            parts.append("-".join(ends))
            held.update(map(chr, range(first, last + 1)))
        else:
            character = rng.choice(CHARACTERS)
            parts.append(written(character, rng, character not in "-^" or (character == "-" and i == 0)))
            held.add(character)
    grammar = f"root ::= [{'^' * is_negated}{''.join(parts)}]"
    asked = constraint(models, grammar)
    for character in CHARACTERS:
        assert allows(models, asked, character) == ((character in held) != is_negated), f"{character!r} in {grammar}"


@pytest.mark.parametrize("seed", range(6))
def test_a_literal_is_its_characters(models: Models, seed):
    rng = random.Random(seed)
    text = "".join(rng.choices(CHARACTERS, k=8))
    asked = constraint(models, f'root ::= "{"".join(written(each, rng) for each in text)}"')
    assert allows(models, asked, text)
    assert not allows(models, asked, text[:-1])
    assert not allows(models, asked, f"{text}x")


@pytest.mark.parametrize(
    ("grammar", "allowed", "others"),
    [
        ('root ::= [+--]{3}  # from "+" to "-"', ["+,-"], ["+++-", "+a-"]),
        ('root ::= Item item\nItem ::= "q"\nitem ::= "r"', ["qr"], ["qq", "rr"]),
        ('root ::= a-b a_b\na-b ::= "1"\na_b ::= "2"', ["12"], ["11", "22"]),
        ('root ::= start "z"\nstart ::= "q"', ["qz"], ["q"]),
        ('root ::= "a"  # one | two\n       | "b" # "c\n\n  | list\nlist ::= "1"', ["a", "b", "1"], ["a1"]),
        ('root ::= "[" ("1"\n  | "2"){2,3} "]"', ["[12]", "[221]"], ["[1]"]),
        ('root ::=\n  "#" rest # the end\nrest ::= "::=" | "|"', ["#::=", "#|"], ["#"]),
    ],
)  # fmt: skip
def test_names_lines_and_comments_are_those_of_llama_cpp(models: Models, grammar, allowed, others):
    asked = constraint(models, grammar)
    for text in allowed:
        assert allows(models, asked, text), text
    for text in others:
        assert not allows(models, asked, text), text


@pytest.mark.parametrize(
    ("grammar", "allowed", "others"),
    [
        ('root ::= ("a"{2}){3}', ["aaaaaa"], ["aaaaa"]),
        ("root ::= ([a-z]{0,2}\n  ){0,2}", ["", "abcd"], ["abcde"]),
        ('root ::= (("a")+)* "*)"', ["aa*)", "*)"], ["aa"]),
        ('root ::= ("+" | "b"?)+ (("*"))?', ["+b*"], ["**"]),
    ],
)
def test_what_is_repeated_can_be_repeated(models: Models, grammar, allowed, others):
    asked = constraint(models, grammar)
    assert all(allows(models, asked, text) for text in allowed)
    assert not any(allows(models, asked, text) for text in others)


@pytest.mark.parametrize("repeated", ["[", "{", '["', "(", "\\"])
def test_a_long_grammar_that_ends_nowhere_is_refused_at_once(models: Models, repeated: str):
    with pytest.raises(InvalidOption, match="is not possible: give a context-free grammar"):
        constraint(models, f"root ::= {repeated * (150_000 // len(repeated))}")
