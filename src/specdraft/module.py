"""The LightningModule that ties target, drafter, corrector, objective and metrics together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric
from typing_extensions import override

from specdraft.checkpoints.facts import KEY, check_facts, checkpoint_facts
from specdraft.correctors import Corrector, NoCorrector
from specdraft.drafters import DFlash, Drafter
from specdraft.metrics import MeanAcceptedTokens, PrefixAcceptance, match_prefix
from specdraft.objectives import Objective, ObjectiveOutput
from specdraft.precision import matmul_precision
from specdraft.schedules import CosineWithWarmup
from specdraft.targets import FrozenHead, HFTarget, load_target
from specdraft.types import BlockBatch, DraftBatch, TargetSpec


class NonFiniteLossError(RuntimeError):
    """Training met a loss or gradient that is not a number; nothing of that step reached the weights."""


@dataclass
class TargetConfig:
    """Where the frozen target comes from.

    Attributes:
        path: Hugging Face name, folder, ``.gguf`` file, or the built-in ``smollm2-135m-instruct``.
        dtype: Floating-point type of its weights: float32, bfloat16, or auto (bfloat16 on CUDA, else float32).
        attention: Attention implementation of transformers, or auto.
        taps: Ids of the tapped layers, a number of evenly spaced taps, ``all``, or null for 5 evenly spaced.
        mask_token_id: Existing embedding row that fills the slots to draft; null picks one and stores it.
    """

    path: str
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    attention: Literal["auto", "sdpa", "eager"] = "auto"
    taps: list[int] | int | Literal["all"] | None = None
    mask_token_id: int | None = None


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
        init_from: Checkpoint whose drafter weights to start from (a warm start, not a resume).
        train_drafter: Train the drafter; false freezes it.
        compile_drafter: Run the drafter through ``torch.compile``.
        val_anchors: Anchors per conversation in validation.
        matmul_precision: Precision of fp32 products while training: ``medium`` multiplies in bfloat16 where the
            hardware has it (decoding always uses ``highest``); ``auto`` is medium on CPUs with AMX or
            AVX-512 BF16, else highest.
        seed: Seed of the anchors; those of a step depend on the seed and the step only, so that resuming is exact.
    """

    drafter: Drafter
    corrector: Corrector
    draft_token_ids: Tensor
    val_family_mat: nn.ModuleDict

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
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        if not _is_plain(dict(self.hparams)):
            # built in Python, not from a config: objects in a checkpoint could not be loaded with weights_only
            self.hparams.clear()
            self._hparams_initial.clear()  # type: ignore[operator, union-attr]
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
        self.seed = seed
        self.drafter = None  # type: ignore[assignment]  # both are made in configure_model
        self.corrector = None  # type: ignore[assignment]
        self._target: HFTarget | None = None
        self._draft_head: FrozenHead | None = None
        self._pending_denominator: Tensor | None = None
        # -1 marks an index map that has not been chosen yet
        self.register_buffer("draft_token_ids", torch.full((draft_vocab_size or 0,), -1, dtype=torch.int64))

    # ------------------------------------------------------------------ frozen target

    @property
    def target(self) -> HFTarget:
        """The frozen target, loaded at the first use."""
        if self._target is None:
            config = self.target_config
            dtype = config.dtype
            if dtype == "auto":
                dtype = "bfloat16" if self._root_device().type == "cuda" else "float32"
            self._target = load_target(
                config.path,
                dtype=dtype,
                attention=config.attention,
                taps=config.taps,
                mask_token_id=config.mask_token_id,
                device=self._root_device(),
            )
        return self._target

    @target.setter
    def target(self, target: HFTarget) -> None:
        self._target = target
        self._draft_head = None

    @property
    def draft_head(self) -> FrozenHead:
        """The target's head, reduced to the draft vocabulary where there is one."""
        if self._draft_head is None:
            if not self.draft_vocab_size:
                return self.target.head
            if int(self.draft_token_ids[0]) < 0:
                raise RuntimeError("the draft vocabulary has not been chosen: fit first, or load a checkpoint")
            self._draft_head = self.target.head.reduce(self.draft_token_ids)
        return self._draft_head

    def _root_device(self) -> torch.device:
        return self._trainer.strategy.root_device if self._trainer is not None else self.device

    # ------------------------------------------------------------------ construction

    @override
    def setup(self, stage: str) -> None:
        self.target.to(self._root_device())

    @override
    def configure_model(self) -> None:
        """Construct drafter, corrector and metrics for the target's spec; does nothing the second time."""
        if self.drafter is not None:
            return
        self._build()
        data = self.trainer.datamodule if self._trainer is not None else None  # type: ignore[attr-defined]
        families = data.family_names() if data is not None else []
        self.val_family_mat = nn.ModuleDict({name: MeanAcceptedTokens() for name in families})
        if self._trainer is None or self.trainer.state.fn != "fit":
            return
        if self.init_from:
            self.warm_start(self.init_from)
        elif self.draft_vocab_size:
            if data is None:
                raise ValueError("draft_vocab_size counts the training tokens: fit with a data module")
            self._choose_draft_vocabulary(data.token_counts())

    def _build(self) -> None:
        spec = self.target.spec
        self.drafter = self.make_drafter(spec)
        self.corrector = self.make_corrector(spec)
        self.drafter.requires_grad_(self.train_drafter)
        if self.compile_drafter:
            self.drafter.compile()
        self.val_acceptance = PrefixAcceptance(self.drafter.num_drafts)
        self.val_mat = MeanAcceptedTokens()
        self.val_loss = MeanMetric()

    def _choose_draft_vocabulary(self, counts: Tensor) -> None:
        size, vocabulary = self.draft_vocab_size, self.target.spec.vocab_size
        assert size is not None
        if not 0 < size <= vocabulary:
            raise ValueError(f"draft_vocab_size {size} must be in 1..{vocabulary}, the target's vocabulary")
        ranked = torch.sort(counts, descending=True, stable=True).indices[:size]
        self.draft_token_ids.copy_(ranked.sort().values)
        covered = counts[ranked].sum() / counts.sum().clamp(min=1)
        rank_zero_info(f"draft vocabulary: {size} of {vocabulary} rows cover {covered:.2%} of the training tokens")

    def warm_start(self, path: str) -> None:
        """Take drafter weights and draft vocabulary from a checkpoint that fits.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If it was made for another target, block size, slot convention or vocabulary.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"init_from: no checkpoint at {path}")
        found = torch.load(path, map_location="cpu", weights_only=True)
        check_facts(found, self._facts(), path)
        state = found["state_dict"]
        self.drafter.load_state_dict({k[8:]: v for k, v in state.items() if k.startswith("drafter.")})
        if self.draft_vocab_size:
            self.draft_token_ids.copy_(state["draft_token_ids"])
            self._draft_head = None

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        trainable = [p for p in self.parameters() if p.requires_grad]
        if not trainable:
            raise ValueError("nothing to train: the drafter is frozen and the corrector has no parameters")
        optimizer = self.make_optimizer(trainable)
        scheduler = self.make_scheduler(optimizer, int(self.trainer.estimated_stepping_batches))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # ------------------------------------------------------------------ steps

    @override
    def training_step(self, batch: DraftBatch, batch_idx: int) -> Tensor:
        with matmul_precision(self.matmul_precision):
            batch = self._with_features(batch)
            self.objective.set_progress(self.global_step / self.trainer.estimated_stepping_batches)
            blocks = self.objective.blocks(
                batch,
                block_size=self.drafter.block_size,
                first_slot=self.drafter.first_slot,
                mask_token_id=self.target.spec.mask_token_id,
                generator=self._generator(batch_idx),
            )
            out = self._objective(batch, blocks)
        self.log("train/loss", out.loss.detach(), prog_bar=True)
        self.log("train/accuracy", out.correct.sum() / out.supervised.clamp(min=1))
        self.log_dict(out.training_values(self.drafter.first_slot))
        # gradients of the numerator alone are accumulated; on_before_optimizer_step divides by the global denominator
        numerator, denominator = _as_scalars(out)
        pending = self._pending_denominator
        self._pending_denominator = denominator if pending is None else pending + denominator
        return numerator

    @override
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        # backward repeats the products of the forward, so it runs under the same precision
        with matmul_precision(self.matmul_precision):
            super().backward(loss, *args, **kwargs)

    @override
    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        assert self._pending_denominator is not None
        world = self.trainer.world_size
        total = self.trainer.strategy.reduce(self._pending_denominator, reduce_op="sum").clamp(min=1e-12)
        self._pending_denominator = None
        # Lightning divided each loss by the accumulation steps and DDP averaged over ranks: undo both
        scale = self.trainer.accumulate_grad_batches * world / total
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        torch._foreach_mul_(gradients, scale)
        norm = nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):
            raise NonFiniteLossError(
                f"loss or gradient is not finite at step {self.global_step} (gradient norm {float(norm)}); the weights "
                "still hold the previous step. Lower the learning rate, set gradient_clip_val, or resume from the "
                "last checkpoint"
            )
        self.log("train/grad_norm", norm)

    @override
    def validation_step(self, batch: DraftBatch, batch_idx: int) -> None:
        with matmul_precision(self.matmul_precision):
            batch = self._with_features(batch)
            blocks = self.objective.validation_blocks(
                batch,
                block_size=self.drafter.block_size,
                first_slot=self.drafter.first_slot,
                mask_token_id=self.target.spec.mask_token_id,
                limit=self.val_anchors,
            )
            out = self._objective(batch, blocks)
        drafts = slice(self.drafter.first_slot, None)
        accepted, drafted = match_prefix(
            out.predicted_ids[..., drafts], blocks.labels[..., drafts], blocks.supervised[..., drafts]
        )
        counted = drafted > 0
        self.val_loss.update(out.loss, _as_scalars(out)[1])
        self.val_acceptance.update(accepted[counted], drafted[counted])
        self.val_mat.update(accepted[counted])
        for row, family in enumerate(batch.families):
            if family in self.val_family_mat:
                self.val_family_mat[family].update(accepted[row][counted[row]])  # type: ignore[operator]

    @override
    def on_validation_epoch_end(self) -> None:
        values = {
            name: value.flatten() for name, value in self.val_acceptance.compute().items()
        }  # K = 1 comes as a scalar
        logged = {"val/loss": self.val_loss.compute(), "val/mat_drafts": self.val_mat.compute() - 1}
        for k in range(self.drafter.num_drafts):
            logged[f"val/survival_at/{k + 1}"] = values["survival"][k]
            logged[f"val/accept_at/{k + 1}"] = values["acceptance"][k]
        for family, metric in self.val_family_mat.items():
            logged[f"val/mat_family/{family}"] = metric.compute()  # type: ignore[operator]
        self.log("val/mat", self.val_mat.compute(), prog_bar=True)
        self.log_dict(logged)
        for metric in (self.val_acceptance, self.val_mat, self.val_loss, *self.val_family_mat.values()):
            metric.reset()  # type: ignore[operator]

    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    @override
    def predict_step(self, batch: DraftBatch, batch_idx: int) -> dict[str, Tensor]:
        """Teacher-forced drafts: predicted ids, labels and supervision, each ``[N, A, B]``, for offline analysis."""
        batch = self._with_features(batch)
        blocks = self.objective.validation_blocks(
            batch,
            block_size=self.drafter.block_size,
            first_slot=self.drafter.first_slot,
            mask_token_id=self.target.spec.mask_token_id,
            limit=self.val_anchors,
        )
        out = self._objective(batch, blocks)
        return {
            "anchors": blocks.anchors,
            "predicted": out.predicted_ids,
            "labels": blocks.labels,
            "supervised": blocks.supervised,
        }

    def _with_features(self, batch: DraftBatch) -> DraftBatch:
        wants_last = self.objective.needs_last_hidden
        if batch.features is None or (wants_last and batch.last_hidden is None):
            out = self.target.features(batch.input_ids, batch.position_ids, batch.document_ids, last_hidden=wants_last)
            batch.features, batch.last_hidden = out.features, out.hidden
        return batch

    def _objective(self, batch: DraftBatch, blocks: BlockBatch) -> ObjectiveOutput:
        assert batch.features is not None
        embeds = self.target.embed(blocks.tokens).to(torch.float32)
        hidden = self.drafter(
            batch.features, embeds, blocks.anchors, blocks.slots, batch.document_ids, batch.position_ids
        )
        return self.objective(hidden, blocks, self.draft_head, batch.last_hidden, self.target.head)

    def _generator(self, batch_idx: int) -> torch.Generator:
        # a function of (seed, epoch, batch, rank): nothing to save, nothing to restore
        where = (self.seed, self.current_epoch, batch_idx, self.global_rank)
        mixed = 0
        for value in where:
            mixed = (mixed * 1_000_003 + value + 1) % (1 << 63)
        return torch.Generator(device=self.device).manual_seed(mixed)

    # ------------------------------------------------------------------ checkpoints

    def _facts(self) -> dict[str, Any]:
        return checkpoint_facts(self.target.spec, self.drafter, self.draft_vocab_size)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[KEY] = self._facts()

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.configure_model()
        check_facts(checkpoint, self._facts(), "given by --ckpt_path")
        self._draft_head = None


def _as_scalars(out: ObjectiveOutput) -> tuple[Tensor, Tensor]:
    """Numerator and denominator as scalars; further terms are brought to the first one's denominator."""
    if out.numerator.ndim == 0:
        return out.numerator, out.denominator
    first = out.denominator[0]
    return (out.numerator * (first / torch.where(out.denominator > 0, out.denominator, 1))).sum(), first


def _is_plain(value: Any) -> bool:
    """Whether a value holds builtins only."""
    if isinstance(value, dict):
        return all(_is_plain(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return value is None or type(value) in (str, int, float, bool)
