"""Conversations as training, validation and test batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lightning import LightningDataModule
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from specdraft.data.batching import Batching, Padded, Share
from specdraft.data.chat import Unusable
from specdraft.data.encode import RowEncoder
from specdraft.data.features import FeatureSource, OnlineFeatures
from specdraft.data.loader import ResumableLoader
from specdraft.data.rows import Row, read_rows
from specdraft.data.selection import at_most, by_family, split
from specdraft.data.sources import PACKAGED
from specdraft.data.tokens import Examples, FeatureReader, TokenisedRows
from specdraft.seeds import run_seed

Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class HeldOutPrompt:
    """A prompt to decode from.

    Attributes:
        id: Name of its row.
        family: Kind of prompt; empty when unknown.
        prompt_ids: Tokens up to where the last response starts.
        text: The last message before it.
    """

    id: str
    family: str
    prompt_ids: list[int]
    text: str


class ChatDataModule(LightningDataModule):
    """Conversations, tokenised as the target's server would, in right-padded :class:`specdraft.types.DraftBatch`.

    Args:
        train: Training data: a packaged name (``smollm2-chat``), a file (JSONL, JSON, Parquet), a data set of the hub
            (``owner/name`` or ``owner/name:split``), or a list of these.
        val: Validation data in the same forms. None holds out ``val_fraction`` of the training data, or takes the
            packaged held-out rows if ``train`` is a packaged name.
        test: Test data in the same forms. None tests on the validation rows.
        batch_size: Rows per batch and rank.
        max_length: Most tokens of a row; longer ones are cut so that supervised tokens remain.
        min_length: Fewest tokens of a row; shorter ones are left out.
        min_labels: Fewest supervised tokens of a row; an anchor needs two.
        val_fraction: Share of the training rows to hold out when ``val`` is None, chosen by a hash of the row's name.
        max_rows: Most training rows; a larger number takes a superset.
        families: Families of prompts to use in every split; None uses all.
        num_workers: Processes that load batches ahead.
        seed: Seed of the order of the training rows; null takes that of ``seed_everything``.
        features: Where the target's features come from; None extracts them while training.
        pin_memory: Whether batches are copied into page-locked memory (only where there is a CUDA device).
        template_options: Further variables of the chat template, such as ``enable_thinking``.
        packaged_folder: Folder of the packaged files; None is that of the installed package.
        batching: How training rows become batches: :class:`Padded` (default), :class:`Bucketed` or :class:`Packed`.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        train: str | list[str],
        val: str | list[str] | None = None,
        test: str | list[str] | None = None,
        batch_size: int = 4,
        max_length: int = 2048,
        min_length: int = 1,
        min_labels: int = 2,
        val_fraction: float = 0.05,
        max_rows: int | None = None,
        families: list[str] | None = None,
        num_workers: int = 0,
        seed: int | None = None,
        features: FeatureSource | None = None,
        pin_memory: bool = True,
        template_options: dict[str, Any] | None = None,
        packaged_folder: str | None = None,
        batching: Batching | None = None,
    ) -> None:
        super().__init__()
        if not 0.0 <= val_fraction < 1.0:
            raise ValueError(f"val_fraction must be in [0, 1), got {val_fraction}")
        for name, value in (("batch_size", batch_size), ("max_length", max_length), ("min_labels", min_labels)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if max_rows is not None and max_rows < 1:
            raise ValueError(f"max_rows must be at least 1 or null, got {max_rows}")
        if not train:
            raise ValueError("train names no data")
        self.sources = {"train": train, "val": val, "test": test}
        self.batch_size = batch_size
        self.max_length = max_length
        self.min_length = min_length
        self.min_labels = min_labels
        self.val_fraction = val_fraction
        self.max_rows = max_rows
        self.families = families
        self.num_workers = num_workers
        self.seed = run_seed(seed)
        self.features = features or OnlineFeatures()
        self.pin_memory = pin_memory
        self.batching = batching or Padded()
        self.template_options = template_options
        self.packaged_folder = Path(packaged_folder) if packaged_folder else None
        self._target: Any = None
        self._last_hidden = False
        self._encoder: RowEncoder | None = None
        self._rows: dict[str, list[Row]] = {}
        self._tokens: dict[str, TokenisedRows] = {}
        self._readers: dict[str, FeatureReader | None] = {}

    def connect(self, target: Any, last_hidden: bool = False) -> ChatDataModule:
        """Use this target's tokenizer and features; a trainer makes it unnecessary.

        Args:
            target: The frozen target.
            last_hidden: Whether batches with cached features carry the last hidden state too.
        """
        if target is not self._target or last_hidden != self._last_hidden:
            self._tokens.clear()
            self._readers.clear()
        self._target = target
        self._last_hidden = last_hidden
        longest = min(self.max_length, target.spec.max_position_embeddings)
        if longest < self.max_length:
            rank_zero_warn(f"max_length {self.max_length} is cut to the {longest} positions of {target.spec.name!r}")
        self._encoder = RowEncoder(
            target.tokenizer,
            max_length=longest,
            min_length=self.min_length,
            min_labels=self.min_labels,
            stop_token_ids=target.stop_token_ids,
            vocab_size=getattr(target, "embedding_rows", target.spec.vocab_size),
            options=self.template_options,
        )
        return self

    @override
    def setup(self, stage: str) -> None:
        module = self.trainer.lightning_module if self.trainer is not None else None
        if module is not None:
            target = module.target  # type: ignore[union-attr]
            needed = bool(module.needs_last_hidden)  # type: ignore[union-attr]
            if target is not self._target or needed != self._last_hidden:
                self.connect(target, needed)
            if hasattr(target, "to"):
                # this hook runs before the module's own: features must not be extracted on the CPU of a GPU machine
                target.to(self.trainer.strategy.root_device)  # type: ignore[union-attr]
        splits: dict[str, tuple[Split, ...]] = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": ("test",),
            "predict": ("test",),
        }
        for name in splits.get(stage, ()):
            if self.rows(name):
                self._reader(name)

    def rows(self, name: Split) -> list[Row]:
        """Chosen rows of a split, before tokenisation."""
        if name not in self._rows:
            self._read(name)
        return self._rows[name]

    def tokens(self, name: Split) -> TokenisedRows:
        """Tokenised rows of a split; rows that cannot be supervised are left out and counted once."""
        if name not in self._tokens:
            self._tokens[name] = self._connected().encode_all(self.rows(name), name)
        return self._tokens[name]

    def token_counts(self) -> Tensor:
        """How often each token is a label of the training rows, ``[V]`` int64, to choose a draft vocabulary by."""
        rows = self.tokens("train")
        return rows.token_counts(self._target.spec.vocab_size)

    def prompts(self, name: Split = "val") -> list[HeldOutPrompt]:
        """Prompts of a split's rows, without their last response, for decoding."""
        encoder, out = self._connected(), []
        for row in self.rows(name):
            try:
                ids = encoder.prompt(row)
            except Unusable:
                continue  # counted when the split was tokenised
            if ids and len(ids) < encoder.max_length:
                out.append(HeldOutPrompt(row.id, row.family, ids, _last_text(row)))
        return out

    def family_names(self) -> list[str]:
        """Families of the validation and test rows, sorted; the same on every rank."""
        return sorted({row.family for name in ("val", "test") for row in self.rows(name) if row.family})

    @override
    def train_dataloader(self) -> ResumableLoader:
        return self._loader("train", shuffle=True)

    @override
    def val_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        return self._loader("val", shuffle=False) if self.rows("val") else []

    @override
    def test_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        return self._loader("test", shuffle=False) if self.rows("test") else []

    @override
    def predict_dataloader(self) -> ResumableLoader | list[ResumableLoader]:
        """The rows of ``test``."""
        return self.test_dataloader()

    def _loader(self, name: Split, shuffle: bool) -> ResumableLoader:
        trainer = self.trainer
        share = Share(
            self.seed,
            # to overfit some batches they must be the same ones in every epoch
            shuffle=shuffle and not getattr(trainer, "overfit_batches", 0),
            rank=trainer.global_rank if trainer else 0,
            world_size=trainer.world_size if trainer else 1,
        )
        batching = self.batching if name == "train" else Padded()
        longest = self._connected().max_length
        sampler = batching.sampler(self.tokens(name).lengths, self.batch_size, longest, share)
        examples = Examples(self.tokens(name), self._reader(name))
        return ResumableLoader(examples, sampler, num_workers=self.num_workers, pin_memory=self.pin_memory)

    def _connected(self) -> RowEncoder:
        if self._encoder is None:
            raise RuntimeError("the data module knows no target yet: run it by a trainer, or call connect(target)")
        return self._encoder

    def _reader(self, name: Split) -> FeatureReader | None:
        if name not in self._readers:
            trainer = self.trainer
            self._readers[name] = self.features.prepare(
                self._target,
                self.tokens(name),
                name,
                last_hidden=self._last_hidden,
                rank=trainer.global_rank if trainer else 0,
                world_size=trainer.world_size if trainer else 1,
                agree=trainer.strategy.reduce_boolean_decision if trainer else None,
            )
        return self._readers[name]

    def _read(self, name: Split) -> None:
        source = self.sources[name]
        if source is not None:
            part: Literal["train", "heldout"] = "train" if name == "train" else "heldout"
            rows = by_family(list(read_rows(source, part, self.packaged_folder)), self.families)
            if not rows:
                raise ValueError(f"{source!r} holds no row")
            if name == "train" and self.sources["val"] is None:
                rows, held = self._hold_out(rows)
                self._rows["val"] = held
            self._rows[name] = at_most(rows, self.max_rows) if name == "train" else rows
        elif name == "val":
            self._read("train")
        else:
            self._rows["test"] = self.rows("val")

    def _hold_out(self, rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        source = self.sources["train"]
        if isinstance(source, str) and source in PACKAGED:
            held = by_family(list(read_rows(source, "heldout", self.packaged_folder)), self.families)
            return list(rows), held
        return split(rows, self.val_fraction)


def _last_text(row: Row) -> str:
    """Content of the last message before the last assistant turn."""
    turns = [i for i, message in enumerate(row.messages) if message["role"] == "assistant"]
    before = row.messages[: turns[-1]] if turns else row.messages
    content = before[-1]["content"] if before else ""
    return content if isinstance(content, str) else str(content)
