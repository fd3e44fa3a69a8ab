"""The LightningModule that ties target, drafter, corrector, objective and metrics together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from typing_extensions import override

from specdraft.checkpoints.facts import KEY, check_corrector, check_facts, checkpoint_facts
from specdraft.checkpoints.registry import read_content
from specdraft.checkpoints.warm_start import load_weights
from specdraft.correction import Corrected, TeacherForced, correct, label_ranks
from specdraft.correctors import Corrector, NoCorrector
from specdraft.drafters import DFlash, Drafter
from specdraft.objectives import Objective
from specdraft.precision import matmul_precision
from specdraft.schedules import CosineWithWarmup
from specdraft.seeds import generator_of, run_seed, seeded
from specdraft.sharding import class_name, shard
from specdraft.step_sums import StepSums, check_scaling
from specdraft.steps import copied, keep_plain, most_frequent, trainable
from specdraft.targets import FrozenHead, HFTarget, TargetConfig, load_device
from specdraft.types import BlockBatch, DraftBatch, TargetSpec
from specdraft.validation import ValidationMetrics


class DraftingModule(LightningModule):
    """Train a drafter (and a corrector) for a frozen target.

    The target lives outside the module tree, so that it is absent from checkpoints, optimiser, summary and DDP.

    Args:
        target: The frozen target.
        drafter: Factory of the drafter.
        corrector: Factory of the corrector.
        objective: Inclusion x weighting x prediction; default: fixed horizon, exponential decay, cross-entropy.
        optimizer: Optimiser over the trainable parameters.
        lr_scheduler: Schedule made from the optimiser and the number of optimiser steps of the run.
        draft_vocab_size: Restrict the drafter's head to this many of the most frequent training tokens; null keeps all.
        init_from: Checkpoint, or exported folder, whose drafter weights to start from (a warm start, not a resume; also
            what is validated without ``ckpt_path``); the corrector's too where it is the same one.
        train_drafter: Train the drafter; false freezes it and trains the corrector alone.
        compile_drafter: Run the drafter through ``torch.compile``.
        val_anchors: Anchors per conversation in validation.
        matmul_precision: Precision of fp32 products while training: ``medium`` multiplies in bfloat16 where the
            hardware has it (decoding always uses ``highest``); ``auto`` is medium on CPUs with AMX or
            AVX-512 BF16, else highest.
        seed: Of anchors and dropout, which depend on seed, step and rank only; null takes that of ``seed_everything``.
        skip_non_finite: Steps in a row that are skipped, on all ranks, where loss or gradient is not finite; one more
            ends the run.
    """

    drafter: Drafter
    corrector: Corrector
    draft_token_ids: Tensor
    val_metrics: ValidationMetrics

    def __init__(
        self,
        target: TargetConfig,
        drafter: Callable[[TargetSpec], Drafter] = DFlash,
        corrector: Callable[[TargetSpec], Corrector] = NoCorrector,
        objective: Objective | None = None,
        optimizer: OptimizerCallable = torch.optim.AdamW,
        lr_scheduler: Callable[[Optimizer, int], LRScheduler] = CosineWithWarmup,
        draft_vocab_size: int | None = None,
        init_from: str | None = None,
        train_drafter: bool = True,
        compile_drafter: bool = False,
        val_anchors: int = 64,
        matmul_precision: Literal["auto", "highest", "high", "medium"] = "auto",
        seed: int | None = None,
        skip_non_finite: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        keep_plain(self)
        self.target_config = target
        self.make_drafter, self.make_corrector = drafter, corrector
        self.objective = objective if objective is not None else Objective()
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.draft_vocab_size = draft_vocab_size
        self.init_from = init_from
        self.train_drafter = train_drafter
        self.compile_drafter = compile_drafter
        self.val_anchors = val_anchors
        self.matmul_precision = matmul_precision
        self.seed = run_seed(seed)
        self.drafter = None  # type: ignore[assignment]  # both are made in configure_model
        self.corrector = None  # type: ignore[assignment]
        self._target: HFTarget | None = None
        self._draft_head: FrozenHead | None = None
        self.step_sums = StepSums(skip_non_finite)
        self._start_from: str | None = None
        self._total_steps: float = 0
        # -1 marks an index map that has not been chosen yet
        self.register_buffer("draft_token_ids", torch.full((draft_vocab_size or 0,), -1, dtype=torch.int64))

    # ------------------------------------------------------------------ frozen target

    @property
    def target(self) -> HFTarget:
        """The frozen target, loaded at the first use."""
        if self._target is None:
            self._target = self.target_config.load(self._root_device())
        return self._target

    @target.setter
    def target(self, target: HFTarget) -> None:
        self._target = target
        self._draft_head = None
        if self.corrector is not None:
            self.corrector.bind(target.embed)

    @property
    def draft_head(self) -> FrozenHead:
        """The target's head, reduced to the draft vocabulary where there is one."""
        if self._draft_head is None:
            if not self.draft_vocab_size:
                return self.target.head.for_drafting()
            if int(self.draft_token_ids[0]) < 0:
                raise RuntimeError("the draft vocabulary has not been chosen: fit first, or load a checkpoint")
            self._draft_head = self.target.head.reduce(self.draft_token_ids)
        return self._draft_head

    def __deepcopy__(self, memo: dict[int, Any]) -> DraftingModule:
        return copied(self, memo, self._target, self._draft_head)  # averaged weights need no second target

    def _root_device(self) -> torch.device:
        return self._trainer.strategy.root_device if self._trainer is not None else load_device() or self.device

    # ------------------------------------------------------------------ construction

    @override
    def setup(self, stage: str) -> None:
        self.target.to(self._root_device())
        if stage == "fit" and self.drafter is not None:
            # built by an earlier validation, in inference mode: autograd takes no tensors from there
            self._draft_head = None
            self.val_metrics.reset()

    @override
    def configure_model(self) -> None:
        """Construct drafter, corrector and metrics for the target's spec, once; shard them to train."""
        if self.drafter is None:
            self._construct()
        if self._trainer is not None and self.trainer.state.fn == "fit":
            shard(self.trainer.strategy, self.drafter, self.corrector)  # last: warm starts load whole weights

    def _construct(self) -> None:
        data = self.trainer.datamodule if self._trainer is not None else None  # type: ignore[attr-defined]
        self._build(data.family_names() if data is not None else [])
        if self._trainer is None or self.trainer.state.fn != "fit":
            self._start_from = None if self._trainer is None else self.init_from
            return
        self.objective.check_trains(self.drafter.block_size, self.drafter.first_slot, self.train_drafter)
        if self.init_from:
            self.warm_start(self.init_from)
        elif self.draft_vocab_size:
            self.draft_token_ids.copy_(most_frequent(data, self.draft_vocab_size))

    @override
    def on_validation_start(self) -> None:
        path, self._start_from = self._start_from, None
        # what was built to validate starts from init_from unless a checkpoint was given, which is known only now
        if path and self.trainer.ckpt_path is None:
            self.warm_start(path)

    on_test_start = on_predict_start = on_validation_start

    def _build(self, families: list[str]) -> None:
        self.drafter = self.make_drafter(self.target.spec)
        self.corrector = self._new_corrector()
        self.corrector.bind(self.target.embed)
        self.drafter.requires_grad_(self.train_drafter)
        if self.compile_drafter:
            self.drafter.compile()
        drafts, first, candidates = self.drafter.num_drafts, self.drafter.first_slot, self.corrector.candidates
        self.val_metrics = ValidationMetrics(drafts, first, candidates, families)

    def _new_corrector(self) -> Corrector:
        spec = self.target.spec
        size = self.draft_vocab_size or spec.vocab_size
        if not 0 < size <= spec.vocab_size:
            raise ValueError(f"draft_vocab_size {size} must be in 1..{spec.vocab_size}, the target's vocabulary")
        return self.make_corrector(replace(spec, draft_vocab_size=size))

    @property
    def needs_last_hidden(self) -> bool:
        """Whether training reads the target's hidden states after its final norm."""
        if self.objective.needs_last_hidden or self.corrector is not None:
            return self.objective.needs_last_hidden or self.corrector.needs_target
        with torch.device("meta"):  # the data module asks before anything is built
            return self._new_corrector().needs_target

    @override
    def train(self, mode: bool = True) -> DraftingModule:
        super().train(mode)
        if self.drafter is not None and not self.train_drafter:
            self.drafter.eval()  # frozen weights run as they will decode
        return self

    def warm_start(self, path: str) -> bool:
        """Take drafter weights, draft vocabulary and those of the same corrector from a file or exported folder.

        Returns whether the corrector was taken too (true if it has no weights); another one starts anew.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it was made for another target, block size, slot convention or vocabulary.
        """
        if not Path(path).exists():
            raise FileNotFoundError(f"init_from: no checkpoint at {path}")
        parts = (self.drafter, self.corrector, self.draft_token_ids)
        taken = load_weights(read_content(path), self._facts(), *parts, path)
        self._draft_head = None
        return taken

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        started = bool(self.train_drafter or self.init_from or self.trainer.ckpt_path)
        optimizer = self.make_optimizer(trainable(self, started))
        check_scaling(optimizer, self.trainer)
        self._total_steps = self.trainer.estimated_stepping_batches  # inf without a limit
        scheduler = self.make_scheduler(optimizer, self._total_steps)  # type: ignore[arg-type]
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # ------------------------------------------------------------------ steps

    @property
    def training_fraction(self) -> float:
        """Fraction of the run's optimiser steps that are done, 0..1; 0 in a run without end, 1 outside of training."""
        return min(1.0, self.global_step / self._total_steps) if self._total_steps and self.training else 1.0

    @override
    def training_step(self, batch: DraftBatch, batch_idx: int) -> Tensor:
        # anchors and dropout are a function of (seed, epoch, batch, rank): nothing to save, nothing to restore
        where = (self.seed, self.current_epoch, batch_idx, self.global_rank)
        with matmul_precision(self.matmul_precision), seeded(self.device, *where):
            batch = self._with_features(batch)
            self.objective.set_progress(self.training_fraction)
            blocks = self.objective.blocks(batch, **self._shape(), generator=generator_of(self.device, *where))
            out, _ = self._corrected(batch, blocks)
        parts = {f"train/{name}": value for name, value in out.parts.items()}
        self.log_dict(parts | out.base.training_values(self.drafter.first_slot))
        # gradients of the numerator alone are accumulated; the end of the step divides by the global denominator
        self.step_sums.add(out.numerator, out.denominator, out.predicted_ids == blocks.labels, blocks, batch)
        return out.numerator

    @override
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        # backward repeats the products of the forward, so it runs under the same precision
        with matmul_precision(self.matmul_precision):
            super().backward(loss, *args, **kwargs)

    @override
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.step_sums.finish(optimizer, self)

    @override
    def validation_step(self, batch: DraftBatch, batch_idx: int) -> dict[str, Tensor]:
        """Update the metrics; callbacks get what :meth:`Corrected.choices` gives in ``on_validation_batch_end``."""
        with matmul_precision(self.matmul_precision):
            batch = self._with_features(batch)
            blocks = self.objective.validation_blocks(batch, **self._shape(), limit=self.val_anchors)
            out, hidden = self._corrected(batch, blocks)
            ranks = label_ranks(hidden, blocks, self.draft_head, self.objective.chunk_size)
        self.val_metrics.loss.update(out.loss, out.denominator)
        drafts = (out.predicted_ids, out.base.predicted_ids)
        self.val_metrics.update(blocks, *drafts, ranks, batch.families, out.confidence)
        for name, value in out.parts.items():
            self.val_metrics.update_part(name, value, out.denominators[name])
        return out.choices(blocks)

    def calibrate(self) -> None:
        """Fit the temperatures of the confidences to this validation, before drafts are cut by them; never in tests."""
        if self.corrector.confidence_head is not None and not self.trainer.testing:
            self.corrector.confidence_head.calibrate(self.val_metrics.temperatures())

    @override
    def on_validation_epoch_end(self) -> None:
        self.calibrate()
        values = self.val_metrics.compute(self.corrector.confidence_head)
        # pooled over the ranks already: the mean of equal values, which is asked for to keep Lightning quiet
        self.log("val/mat", values.pop("val/mat"), prog_bar=True, sync_dist=True)
        self.log_dict(values, sync_dist=True)
        self.val_metrics.reset()

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    @override
    def predict_step(self, batch: DraftBatch, batch_idx: int) -> dict[str, Tensor]:
        """Teacher-forced drafts for offline analysis, see :meth:`specdraft.correction.Corrected.choices`."""
        batch = self._with_features(batch)
        blocks = self.objective.validation_blocks(batch, **self._shape(), limit=self.val_anchors)
        return self._corrected(batch, blocks)[0].choices(blocks)

    def _with_features(self, batch: DraftBatch) -> DraftBatch:
        wants_last = self.needs_last_hidden
        if batch.features is None or (wants_last and batch.last_hidden is None):
            out = self.target.features(batch.input_ids, batch.position_ids, batch.document_ids, last_hidden=wants_last)
            batch.features, batch.last_hidden = out.features, out.hidden
        if not wants_last:  # a cache may hold them, which must not change what is learnt
            batch.last_hidden = None
        return batch

    def _shape(self) -> dict[str, int]:
        sizes = {"block_size": self.drafter.block_size, "first_slot": self.drafter.first_slot}
        return sizes | {"mask_token_id": self.target.spec.mask_token_id}

    def _corrected(self, batch: DraftBatch, blocks: BlockBatch) -> tuple[Corrected, Tensor]:
        """Losses and teacher-forced choices, and the drafter's output ``[N, A, B, H]``."""
        assert batch.features is not None
        embeds = self.target.embed(blocks.tokens).to(torch.float32)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.train_drafter):
            where = (blocks.anchors, blocks.slots, batch.document_ids, batch.position_ids)
            hidden = self.drafter(batch.features, embeds, *where)
        heads, last = (self.draft_head, self.target.head), batch.last_hidden
        given = TeacherForced(blocks, self.drafter.first_slot, *heads, last, self.train_drafter, self.training_fraction)
        return correct(self.objective, self.corrector, hidden, given), hidden

    # ------------------------------------------------------------------ checkpoints

    def _facts(self) -> dict[str, Any]:
        corrector = {"class": class_name(self.corrector), **self.corrector.extra_state_for_checkpoint()}
        facts = checkpoint_facts(self.target.spec, self.drafter, self.draft_vocab_size, corrector)
        facts["drafter"]["class"] = class_name(self.drafter)
        return {**facts, "scales": self.target.scales, "candidates": self.corrector.candidates}

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = self._facts()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.configure_model()
        check_facts(checkpoint, self._facts(), "given by --ckpt_path")
        check_corrector(checkpoint, self._facts(), "given by --ckpt_path")
        self._draft_head = None
