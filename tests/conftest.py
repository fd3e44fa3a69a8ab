"""A tiny random target with a tokenizer and chat data, made once per session; nothing is downloaded."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import kills
import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "red",
    "blue", "green", "apple", "pear", "plum", "add", "take", "the", "and", "is", "of",
]  # fmt: skip


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny shapes: a second thread only costs
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _no_seed_of_another_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)  # set by every `fit`; parts take it for their own


def save_tiny_target(folder: Path, seed: int = 0, layers: int = 4, hidden: int = 32) -> Path:
    """Save a random Llama of ``layers`` layers with a word-level tokenizer and a ChatML template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
    pieces = ["system", "user", "assistant", "\n", " ", *WORDS]
    vocab = {token: i for i, token in enumerate([*specials, "<unk>", *pieces])}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(pattern=r"\n", behavior="isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [raw.pre_tokenizer, pre_tokenizers.Split(pattern=" ", behavior="removed")]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<|mask|>"],
    )
    tokenizer.chat_template = CHATML
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny target."""
    return save_tiny_target(tmp_path_factory.mktemp("tiny-target"))


@pytest.fixture(scope="session")
def chat_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSONL file of 24 short conversations of two families, regular enough to be learnt."""
    path = tmp_path_factory.mktemp("data") / "chat.jsonl"
    rows = []
    for i in range(24):
        a, b = WORDS[i % 10], WORDS[(i + 3) % 10]
        family = "add" if i % 2 else "take"
        rows.append(
            {
                "id": f"row-{i}",
                "family": family,
                "prompt": f"{family} {a} and {b}",
                "response": " ".join([family, a, "and", b, "is", "the", WORDS[10 + i % 3], "apple"] * 2),
            }
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run ``specdraft`` with the given words, inside a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["specdraft"])  # the CLI warns when pytest's own words are there too

    def run(*words: object) -> None:
        from specdraft.cli import main

        main([str(word) for word in words])

    return run


@pytest.fixture
def tiny_config(tmp_path: Path, tiny_target: Path, chat_file: Path) -> Path:
    """A complete run over the tiny target: 6 steps, validation with decoding every 3."""
    return write_tiny_config(tmp_path, tiny_target, chat_file)


def write_tiny_config(tmp_path: Path, tiny_target: Path, chat_file: Path) -> Path:
    """Write the run of :func:`tiny_config` into a folder."""
    path = tmp_path / "tiny.yaml"
    path.write_text(
        f"""
seed_everything: 1
trainer:
  accelerator: cpu
  devices: 1
  max_epochs: -1
  max_steps: 6
  val_check_interval: 3
  check_val_every_n_epoch: null
  num_sanity_val_steps: 0
  gradient_clip_val: 1.0
  log_every_n_steps: 1
  enable_progress_bar: false
  enable_model_summary: false
  logger:
    class_path: lightning.pytorch.loggers.TensorBoardLogger
    init_args: {{save_dir: {tmp_path}/runs, name: tiny, version: v, default_hp_metric: false}}
  callbacks:
    - class_path: SpeculativeDecoding
      init_args: {{num_prompts: 3, max_new_tokens: 12, concurrency: 2}}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{monitor: decode/mat, mode: max, filename: best, enable_version_counter: false}}
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {{filename: last, every_n_train_steps: 1, enable_version_counter: false}}
    - class_path: Provenance
model:
  target: {{path: {tiny_target}, taps: [0, 2]}}
  drafter:
    class_path: DFlash
    init_args: {{num_layers: 1, block_size: 4, tap_norm: true}}
  corrector: NoCorrector
  objective:
    class_path: Objective
    init_args: {{inclusion: FixedHorizon, weighting: ExponentialDecay, prediction: CrossEntropy, num_anchors: 4}}
  optimizer:
    class_path: torch.optim.AdamW
    init_args: {{lr: 0.01}}
  matmul_precision: highest
data:
  class_path: ChatDataModule
  init_args:
    train: {chat_file}
    val_fraction: 0.25
    batch_size: 3
    max_length: 64
    features: OnlineFeatures
"""
    )
    return path


@pytest.fixture
def kill_at_random(tmp_path: Path) -> Callable[..., int]:
    """:func:`kills.kill_at_random` in a folder of its own."""
    return partial(kills.kill_at_random, tmp_path)
