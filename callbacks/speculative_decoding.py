"""Real speculative decoding at the end of validation: training tied to end-to-end throughput."""

from __future__ import annotations

import math
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from typing_extensions import override

from specdraft.bootstrap import FIELDS
from specdraft.callbacks.decoded_views import draw, write_samples
from specdraft.callbacks.held_out import held_out_requests
from specdraft.callbacks.naming import check_name, renamed
from specdraft.callbacks.order import check_order
from specdraft.callbacks.prompt_counts import counts, digest, sum_over_ranks, write_counts
from specdraft.callbacks.report import summary_table
from specdraft.callbacks.writer import tensorboard_writer
from specdraft.checkpoints import digest as content_digest
from specdraft.decoding import (
    BlockPolicy,
    DecodeResult,
    MadeFor,
    PolicyFile,
    Request,
    SamplingParams,
    alternately,
    autoregressive_decode,
    check_block_size,
    check_threshold,
    load_policy,
    speculative_decode,
    with_threshold,
)
from specdraft.metrics import MeanAcceptedTokens, PrefixAcceptance
from specdraft.packing import packed_linears
from specdraft.sharding import gathered, is_sharded


class SpeculativeDecoding(Callback):
    """Decode held-out prompts with drafter and corrector as they stand, in turns with the lean baseline.

    Logs under ``decode/``: ``mat`` (bonus counted, pooled over rounds), ``mat_drafts``, ``mat_prompt_mean``,
    ``mat_family/*``, ``tokens_per_second`` and ``ar_tokens_per_second`` (prefill apart), ``speedup``,
    ``round_ms/{draft,correct,verify,host}``, ``survival_at/k``, ``accept_at/k``, ``exposure_gap`` (teacher-forced MAT
    of as many drafts minus ``decode/mat``; only when greedy and of one block size) and, when greedy, ``lossless``: the
    fraction of outputs that equal the baseline's token for token; ``offered_drafts``, the drafts per round that could
    have been accepted; ``corrector_parameters``. Figures (acceptance per position, accepted lengths, latency of a
    round) and an answer per family with its accepted drafts marked go to TensorBoard.
    ``ModelCheckpoint`` and ``EarlyStopping`` can monitor every value. What became of each prompt is written to
    ``decoded/SPLIT-STEP.csv`` in the run's folder, for the paired intervals of ``specdraft compare``.

    Prompts are dealt to the ranks in turn and all counts are pooled. Sampling uses a generator of its own, so that
    the evaluation does not change the training.

    Args:
        num_prompts: Prompts to decode, dealt evenly over the families of the validation set; null takes all.
        max_new_tokens: Tokens per prompt at most.
        temperature: Sampling temperature; 0 is greedy.
        top_p: Nucleus of the target's distribution.
        top_k: Candidates of the target's distribution; 0 keeps all.
        block_size: Block size to decode with; null is the trained one.
        policy: File written by ``specdraft tune`` that chooses the block size of each round, in place of
            ``block_size``; its mean is logged as ``decode/mean_block_size``.
        concurrency: Requests in flight.
        rule: Verification rule at ``temperature > 0``: token by token, or by block.
        every_n_validations: Decode at each n-th validation of a training only; in between the last values are logged
            again, so that monitors find them.
        seed: Seed of the sampling.
        confidence_threshold: Verify drafts only while the product of their calibrated confidences is at least this;
            0 verifies all. Needs a corrector with confidences.
        name: Takes the place of ``decode`` before all values, and comes before SPLIT in the file; set it to decode in
            a second way in the same run. ``specdraft compare`` and the callbacks read ``decode``.
    """

    def __init__(
        self,
        num_prompts: int | None = 16,
        max_new_tokens: int = 64,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        block_size: int | None = None,
        policy: str | None = None,
        concurrency: int = 1,
        rule: Literal["token", "block"] = "token",
        every_n_validations: int = 1,
        seed: int = 0,
        confidence_threshold: float = 0.0,
        name: str = "decode",
    ) -> None:
        self.name = check_name(name)
        least = {"num_prompts": num_prompts, "block_size": block_size, "concurrency": concurrency}
        for option, value in {**least, "every_n_validations": every_n_validations}.items():
            if value is not None and value < 1:
                raise ValueError(f"{option} must be at least 1, got {value}")
        if max_new_tokens < 2:
            raise ValueError(f"max_new_tokens must be at least 2, got {max_new_tokens}: the first is the prefill's")
        check_threshold(confidence_threshold)
        self.confidence_threshold = confidence_threshold
        if policy is not None:
            if block_size is not None:
                raise ValueError(f"block_size {block_size} and policy {policy} were both given; leave one out")
            PolicyFile.read(policy)  # refused before anything is trained
        self.num_prompts = num_prompts
        self.max_new_tokens = max_new_tokens
        self.params = SamplingParams(temperature, top_p, top_k)
        self.block_size = block_size
        self.policy = policy
        self.concurrency = concurrency
        self.rule = rule
        self.every_n_validations = every_n_validations
        self.seed = seed
        self.last_values: dict[str, float] = {}
        self._validations, self._fitting = 0, True

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if trainer.datamodule is None:  # type: ignore[attr-defined]
            raise ValueError(
                "SpeculativeDecoding takes its prompts from the data module: pass one, or remove the callback"
            )
        check_order(trainer.callbacks, self)  # type: ignore[attr-defined]
        self._fitting = stage == "fit"

    @property
    @override
    def state_key(self) -> str:
        return super().state_key if self.name == "decode" else self._generate_state_key(name=self.name)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"validations": self._validations, "last_values": dict(self.last_values)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._fitting:
            return  # what is measured now, not what was when the checkpoint was saved
        self._validations = state_dict["validations"]
        self.last_values = dict(state_dict["last_values"])

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        if not self._fitting or self._validations % self.every_n_validations == 0:
            self.last_values = self._measure(trainer, pl_module, "val")
        self._validations += self._fitting
        self._log(pl_module)

    @override
    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.last_values = self._measure(trainer, pl_module, "test")
        self._log(pl_module)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Refuse at once what could not be decoded at the first validation."""
        check_block_size(pl_module.drafter, self.block_size or pl_module.drafter.block_size)
        with_threshold(pl_module.corrector, self.confidence_threshold)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when it is used
            self._load_policy(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking and trainer.state.fn == "validate":
            self._print(trainer)

    @override
    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._print(trainer)

    def _log(self, module: LightningModule) -> None:
        # pooled over the ranks already: the mean of equal values, which is asked for to keep Lightning quiet
        for name, value in renamed(self.last_values, self.name).items():
            module.log(name, value, prog_bar=name.endswith("/mat"), sync_dist=True)

    def _print(self, trainer: Trainer) -> None:
        if self.last_values:
            by = f"by {self.policy}" if self.policy is not None else self.block_size or "trained"
            how = (
                f"temperature {self.params.temperature:g}, block size {by}, "
                f"concurrency {self.concurrency}, at most {self.max_new_tokens} new tokens, "
                "lean AR baseline of the same run"
            )
            own = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("val/")}
            rank_zero_info("\n" + summary_table(own | self.last_values, how))

    # ------------------------------------------------------------------ measuring

    def _measure(self, trainer: Trainer, module: Any, split: str) -> dict[str, float]:
        everything, texts = held_out_requests(trainer, module, split, self.num_prompts, self.max_new_tokens)
        all_families = [request.workload for request in everything]
        mine = slice(trainer.global_rank, None, trainer.world_size)
        requests, families = everything[mine], all_families[mine]
        module.calibrate()  # to the teacher-forced part of this validation, which is over
        generator = torch.Generator(device=module.device).manual_seed(self.seed + trainer.global_rank)
        drafter = module.drafter
        policy = self._load_policy(trainer, module)
        training = module.training
        module.eval()
        # a compiled or sharded drafter holds on to its layers, so these stay as they are
        fixed = getattr(module, "compile_drafter", False) or is_sharded(drafter)
        packed = nullcontext() if fixed else packed_linears(drafter)
        with trainer.precision_plugin.forward_context(), gathered(drafter, module.corrector), packed:
            plain = partial(
                autoregressive_decode,
                module.target,
                params=self.params,
                concurrency=self.concurrency,
                generator=generator,
            )
            drafting = partial(
                speculative_decode,
                module.target,
                drafter,
                with_threshold(module.corrector, self.confidence_threshold),
                module.draft_head,
                mask_token_id=module.target.spec.mask_token_id,
                params=self.params,
                concurrency=self.concurrency,
                block_size=self.block_size,
                policy=policy,
                rule=self.rule,
                generator=generator,
            )
            baseline, drafted = alternately([plain, drafting], requests, self.concurrency, module.target.spec)
        module.train(training)
        if writer := tensorboard_writer(trainer):
            prompts = list(zip(families, texts[mine], strict=True))
            write_samples(writer, module.target.tokenizer, prompts, drafted.results, trainer.global_step, self.name)
        self._keep(trainer, module.device, split, everything, all_families, baseline, drafted)
        largest = max(policy.sizes) if policy is not None else self.block_size or drafter.block_size
        return self._values(trainer, module, baseline, drafted, families, largest)

    def _load_policy(self, trainer: Trainer, module: Any) -> BlockPolicy | None:
        """A fresh policy; says once where it was made for something else."""
        if self.policy is None:
            return None
        fitting = trainer.state.fn == "fit" or trainer.ckpt_path is None
        weights = "the weights of this run" if fitting else str(trainer.ckpt_path)
        dtype = next(module.drafter.parameters()).dtype
        found = content_digest(weights) if not fitting and Path(weights).exists() else ""
        here = MadeFor.of(module.target.device, module.target.dtype, dtype, weights, found, self.params)
        with warnings.catch_warnings():
            if self._validations and self._fitting:
                warnings.simplefilter("ignore")
            return load_policy(self.policy, here, self.params.temperature, module.drafter.block_size)

    def _keep(
        self,
        trainer: Trainer,
        device: torch.device,
        split: str,
        requests: list[Request],
        families: list[str],
        baseline: DecodeResult,
        drafted: DecodeResult,
    ) -> None:
        """Write what became of the prompts of all ranks."""
        mine = slice(trainer.global_rank, None, trainer.world_size)
        rows = counts(drafted.results, baseline.results, len(requests), mine)
        pooled = sum_over_ranks(trainer, device, [value for row in rows for value in row])
        folder = trainer.log_dir  # type: ignore[attr-defined]  # asked by every rank: it is broadcast
        if folder is None or trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        whole = [pooled[i : i + len(FIELDS)] for i in range(0, len(pooled), len(FIELDS))]
        prefix = "" if self.name == "decode" else f"{self.name}-"
        path = Path(folder) / "decoded" / f"{prefix}{split}-{trainer.global_step}.csv"
        write_counts(path, [digest(request.prompt_ids) for request in requests], families, whole)

    def _values(
        self,
        trainer: Trainer,
        module: Any,
        baseline: DecodeResult,
        drafted: DecodeResult,
        families: list[str],
        block_size: int,
    ) -> dict[str, float]:
        device, drafts = module.device, block_size - module.drafter.first_slot
        acceptance, mat = PrefixAcceptance(drafts).to(device), MeanAcceptedTokens().to(device)
        by_family = {name: MeanAcceptedTokens().to(device) for name in trainer.datamodule.family_names()}  # type: ignore[attr-defined]
        for result, family in zip(drafted.results, families, strict=True):
            accepted = torch.tensor(result.accepted, dtype=torch.int64, device=device)
            acceptance.update(accepted, torch.tensor(result.drafted, dtype=torch.int64, device=device))
            mat.update(accepted)
            if family in by_family:
                by_family[family].update(accepted)
        same = sum(a.tokens == b.tokens for a, b in zip(baseline.results, drafted.results, strict=True))
        own = [1 + sum(r.accepted) / r.rounds for r in drafted.results if r.rounds]
        pooled = sum_over_ranks(
            trainer,
            device,
            [
                *(baseline.emitted - len(baseline.results), baseline.decode_seconds),
                *(drafted.emitted - len(drafted.results), drafted.decode_seconds),
                *(drafted.steps, same, len(drafted.results), math.fsum(own), len(own)),
                *(sum(sum(r.drafted) for r in drafted.results), drafted.rounds),
                sum(entry.block_size for entry in drafted.log),
                *(drafted.timing.draft, drafted.timing.correct, drafted.timing.verify, drafted.timing.host),
            ],
        )
        ar_tokens, ar_seconds, tokens, seconds, steps, equal, *rest = pooled
        count, own_sum, own_count, offered, rounds, slots, *parts = rest
        # every rank decodes for itself, so seconds add up to device seconds and the rates are per device
        values = {
            "decode/mat": float(mat.compute()),
            "decode/mat_drafts": max(0.0, float(mat.compute()) - 1),  # 0 without rounds
            "decode/mat_prompt_mean": own_sum / max(own_count, 1),
            "decode/tokens_per_second": tokens / max(seconds, 1e-9),
            "decode/ar_tokens_per_second": ar_tokens / max(ar_seconds, 1e-9),
            "decode/num_prompts": count,
            "decode/offered_drafts": offered / max(rounds, 1),
            "decode/corrector_parameters": float(sum(p.numel() for p in module.corrector.parameters())),
        }
        if self.policy is not None:
            values["decode/mean_block_size"] = slots / max(steps, 1)
        # callbacks come before the module's own end of epoch, so that its metrics still hold this validation
        comparable = self.policy is None and not (self.params.temperature or self.confidence_threshold)
        if comparable and (teacher_forced := module.val_metrics.mat_of(drafts)) > 0:
            values["decode/exposure_gap"] = teacher_forced - values["decode/mat"]
        values["decode/speedup"] = values["decode/tokens_per_second"] / max(values["decode/ar_tokens_per_second"], 1e-9)
        for name, part in zip(("draft", "correct", "verify", "host"), parts, strict=True):
            values[f"decode/round_ms/{name}"] = 1e3 * part / max(steps, 1)
        if self.params.temperature == 0:
            values["decode/lossless"] = equal / max(count, 1)
        computed = {name: value.flatten() for name, value in acceptance.compute().items()}  # K = 1 comes as a scalar
        for k in range(drafts):
            values[f"decode/survival_at/{k + 1}"] = float(computed["survival"][k])
            values[f"decode/accept_at/{k + 1}"] = float(computed["acceptance"][k])
        for family, metric in by_family.items():
            # every rank takes part in the reduction, and a family that was not decoded has no value
            value = float(metric.compute())
            if math.isfinite(value) and value > 0:
                values[f"decode/mat_family/{family}"] = value
        if writer := tensorboard_writer(trainer):
            draw(writer, computed, values, trainer.global_step, self.name)
        return values
