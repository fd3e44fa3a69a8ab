from __future__ import annotations

import pytest

from specdraft.arguments import option_words


def command(checkpoint: list[str], block_sizes: list[int] | None = None, profile: bool = False, seed: int = 0) -> None:
    """A command."""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--block-sizes 4 8", ["--block_sizes=[4,8]"]),
        ("--block_sizes=[4,8]", ["--block_sizes=[4,8]"]),
        ("--block-sizes=4,8 --seed 3", ["--seed", "3", "--block_sizes=[4,8]"]),
        ("--block-sizes 4 --seed=-1 --block-sizes 8", ["--seed=-1", "--block_sizes=[4,8]"]),
        ("--block_sizes=null", ["--block_sizes=null"]),
        ("--checkpoint a.ckpt", ['--checkpoint=["a.ckpt"]']),
        ("--checkpoint a.ckpt b.ckpt --profile", ["--profile=true", '--checkpoint=["a.ckpt","b.ckpt"]']),
        ("--profile --seed 1", ["--profile=true", "--seed", "1"]),
        ("--profile false", ["--profile", "false"]),
        ("--unknown-name 3 --help", ["--unknown-name", "3", "--help"]),
        ("--block_sizes+=4", ["--block_sizes+=4"]),
    ],
)
def test_words(words, expected):
    assert option_words(command, words.split()) == expected
