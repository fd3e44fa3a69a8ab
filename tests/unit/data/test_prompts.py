from __future__ import annotations

import hashlib
import re
from collections import Counter

import pytest

from specdraft.data.prompt_families import arithmetic
from specdraft.data.prompt_families.words import bank, draw_distinct, plural, with_article
from specdraft.data.prompts import PromptRow, build_prompts

TRAIN = {"arithmetic": 6500, "lists": 2670, "rewriting": 2800, "code": 1200, "questions": 1800}
HELDOUT = {"arithmetic": 20, "lists": 12, "rewriting": 10, "code": 10, "questions": 12}


@pytest.fixture(scope="module")
def train() -> list[PromptRow]:
    return build_prompts("train")


@pytest.fixture(scope="module")
def heldout() -> list[PromptRow]:
    return build_prompts("heldout")


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def trigrams(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    return {tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))}


def test_sizes(train: list[PromptRow], heldout: list[PromptRow]) -> None:
    assert Counter(row.family for row in heldout) == HELDOUT
    counts = Counter(row.family for row in train)
    assert counts.keys() == TRAIN.keys()
    for family, count in counts.items():
        assert abs(count - TRAIN[family]) <= 0.05 * TRAIN[family]


def test_no_prompt_occurs_twice_in_or_across_the_splits(train: list[PromptRow], heldout: list[PromptRow]) -> None:
    counts = Counter(" ".join(words_of(row.prompt)) for row in train + heldout)
    assert [text for text, count in counts.items() if count > 1] == []
    assert len({row.id for row in train + heldout}) == len(train) + len(heldout)


def test_heldout_prompts_have_no_near_copy_in_train(train: list[PromptRow], heldout: list[PromptRow]) -> None:
    known = [trigrams(row.prompt) for row in train]
    for row in heldout:
        own = trigrams(row.prompt)
        closest = max(len(own & other) / len(own | other) for other in known)
        assert closest < (0.7 if row.family == "arithmetic" else 0.6), row.prompt


def test_reserved_fillers_never_reach_train(train: list[PromptRow]) -> None:
    reserved = [word for name, words in vars(arithmetic).items() if name.startswith("RESERVED_") for word in words]
    seen = " ".join(row.prompt for row in train)
    assert len(reserved) > 20
    assert [word for word in reserved if re.search(rf"\b{word}", seen)] == []


def test_every_prefix_is_balanced(train: list[PromptRow]) -> None:
    total = Counter(row.family for row in train)
    for size in (100, 1000, 3000):
        part = Counter(row.family for row in train[:size])
        for family in TRAIN:
            # jitter moves a prompt by at most one place of its own family
            assert abs(part[family] - total[family] * size / len(train)) <= 3


def test_order_is_pinned(train: list[PromptRow], heldout: list[PromptRow]) -> None:
    # stored answers refer to these ids: whoever edits a prompt regenerates the answers and updates the digests
    digests = [hashlib.sha256("\n".join(row.id for row in rows).encode()).hexdigest()[:16] for rows in (train, heldout)]
    assert digests == ["c1393fd859a5dc57", "5a9e1d6b0c161a2e"]


def test_the_build_is_repeatable_and_ids_follow_the_text(train: list[PromptRow]) -> None:
    assert build_prompts("train") == train
    assert all(re.fullmatch(rf"{row.family}-[0-9a-f]{{12}}", row.id) for row in train)


def test_ids_do_not_depend_on_the_other_prompts(train: list[PromptRow]) -> None:
    row = train[0]
    assert row.id.rsplit("-", 1)[1] == hashlib.sha256(row.prompt.encode()).hexdigest()[:12]


def test_prompts_are_clean_english(train: list[PromptRow], heldout: list[PromptRow]) -> None:
    for row in train + heldout:
        text = row.prompt
        assert text == text.strip()
        assert text[0].isupper() or text[0].isdigit(), text
        assert not re.search(r"[{}|]|  |\.\.|\?\.", text), text
        if row.family != "code":
            assert not re.search(r"\b[Aa] [aeiou]\w+|\b[Aa]n [^aeiou\W]\w+", text), text
        assert len(text) <= 200, text


def test_arithmetic_answers_stay_positive_and_whole(train: list[PromptRow]) -> None:
    checks = 0
    for row in train:
        if match := re.match(r"\w+ had (\d+) .* gave (\d+) of them", row.prompt):
            assert int(match[1]) > int(match[2])
        elif match := re.match(r"\w+ shares (\d+) .* among (\d+)", row.prompt):
            assert int(match[1]) % int(match[2]) == 0
        elif match := re.match(r"(\d+)% of the (\d+)", row.prompt):
            assert int(match[1]) * int(match[2]) % 100 == 0
        elif match := re.match(r"\w+ had (\d+) .* bought (\d+) more and then gave (\d+)", row.prompt):
            assert int(match[1]) + int(match[2]) > int(match[3])
        else:
            continue
        checks += 1
    assert checks > 100


def test_arithmetic_heldout_mixes_new_scenarios_with_new_things(heldout: list[PromptRow]) -> None:
    texts = [row.prompt for row in heldout if row.family == "arithmetic"]
    shapes = [t for t in texts if re.search(r"Beatrix|Ingrid|Keiko|Thandi|Margot|Alistair|Dmitri|Kofi|Rashid|Thad", t)]
    assert len(shapes) == 10


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'test'.*'train', 'heldout'"):
        build_prompts("test")  # type: ignore[arg-type]


def test_words() -> None:
    assert [plural(n) for n in ("box", "cherry", "day", "peach", "lamp")] == [
        "boxes", "cherries", "days", "peaches", "lamps",
    ]  # fmt: skip
    assert [with_article(n) for n in ("apple", "pear")] == ["an apple", "a pear"]
    assert bank("a b, c\nd,") == ["a b", "c", "d"]
    with pytest.raises(ValueError, match="repeats \\['a'\\]"):
        bank("a, b, a")
    with pytest.raises(ValueError, match="only 2 of 3"):
        draw_distinct(3, lambda i: str(i % 2))
