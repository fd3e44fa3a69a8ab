"""A frozen causal LM of transformers as a target: features for training, cached forwards for decoding."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import torch
from torch import Tensor

from specdraft.cache import KeyValueCache
from specdraft.packing import pack_linears, unpack_linears
from specdraft.targets.bridge import ATTENTION_NAME, CacheBridge, Pass, running, watch_layers
from specdraft.targets.describe import describe
from specdraft.targets.families import (
    decoder_layers,
    embedding_multiplier,
    logit_multiplier,
    logit_softcap,
    module_scale,
)
from specdraft.targets.head import FrozenHead
from specdraft.targets.lean import LeanDecoder
from specdraft.types import TargetOutput


class HFTarget:
    """Frozen causal LM behind the :class:`specdraft.types.DecodingTarget` contract.

    Deliberately not an ``nn.Module``, so that it never enters a module tree, a state dict or an optimiser. The model is
    taken over: it is frozen, its attention is replaced, and it must only be called through this object afterwards.

    Args:
        model: A causal LM of transformers.
        name: Name or folder of the target, stored in the spec.
        taps: Ids of the tapped layers, a number of evenly spaced ones, ``all``, or None for five.
        mask_token_id: Existing embedding row for undrafted slots, or None for the last one.
        attention: Kernel of :meth:`features`: ``auto`` and ``sdpa`` are fused, ``eager`` is a slow reference.
        pack: Multiply few rows with packed copies of the weights in fp32 on the CPU: much faster, twice the memory.
        tokenizer: The tokenizer that belongs to the model, or None when nothing needs one.

    Raises:
        ValueError: If taps or mask token do not fit, or the family cannot take another attention function.
    """

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        taps: list[int] | tuple[int, ...] | int | Literal["all"] | None = None,
        mask_token_id: int | None = None,
        attention: Literal["auto", "sdpa", "eager"] = "auto",
        pack: bool = True,
        tokenizer: Any | None = None,
    ) -> None:
        if attention not in ("auto", "sdpa", "eager"):
            raise ValueError(f"attention {attention!r} is unknown; use auto, sdpa or eager")
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self._decoder = model.get_decoder()
        self._explicit = attention == "eager"
        self._pack = pack
        self._tokenizer = tokenizer
        self._lean: LeanDecoder | None = None
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        model.set_attn_implementation(ATTENTION_NAME)
        if self.config._attn_implementation != ATTENTION_NAME:
            raise ValueError(
                f"{type(model).__name__} does not take another attention function, so it cannot be a target"
            )
        self._embedding = model.get_input_embeddings()
        self._embedding_multiplier = embedding_multiplier(self.config)
        watch_layers(decoder_layers(self._decoder, self.config.num_hidden_layers))
        self.head = self._new_head()
        rows = self.embedding_rows
        self.spec = describe(
            self.config,
            name,
            taps,
            mask_token_id,
            rows=rows,
            vocab_size=self.head.vocab_size,
            architecture=type(model).__name__,
        )
        self._prepare_decoding()

    def _new_head(self) -> FrozenHead:
        output = self.model.get_output_embeddings()
        return FrozenHead(
            output.weight,
            bias=getattr(output, "bias", None),
            softcap=logit_softcap(self.config),
            multiplier=logit_multiplier(self.config),
            pack=self._pack,
        )

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights, and so of features, hidden states and logits."""
        return self._embedding.weight.dtype

    @property
    def context_length(self) -> int:
        """Longest context of the target, in tokens."""
        return self.spec.max_position_embeddings

    @property
    def embedding_rows(self) -> int:
        """Rows of the input embedding, which may outnumber those of the head."""
        return self._embedding.weight.shape[0]

    @property
    def scales(self) -> dict[str, float | None]:
        """Scaling of the family: ``embedding`` and ``multiplier`` (of the logits) are factors, ``softcap`` a bound.

        The factor of the embedding is the whole one between a row of the weights and what :meth:`embed` returns,
        whether model or module applies it.
        """
        return {
            "embedding": self._embedding_multiplier * module_scale(self._embedding),
            "multiplier": self.head.multiplier,
            "softcap": self.head.softcap,
        }

    @property
    def adds_positions(self) -> bool:
        """Whether the model adds learned positions to the embedding (GPT-2, OPT), which :meth:`embed` leaves out."""
        return any(hasattr(self._decoder, name) for name in ("wpe", "embed_positions"))

    @property
    def static_shapes(self) -> bool:
        """Whether :meth:`forward` runs at static shapes without asking the device, so that it may be captured."""
        return self._lean is not None

    @property
    def tokenizer(self) -> Any:
        """The tokenizer that belongs to the target.

        Raises:
            ValueError: If the target was made without one.
        """
        if self._tokenizer is None:
            raise ValueError(f"target {self.spec.name!r} has no tokenizer; save one into its folder")
        return self._tokenizer

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a response: those of the generation config and the config, and the tokenizer's."""
        holders = (getattr(self.model, "generation_config", None), self.config, self._tokenizer)
        ids: list[int] = []
        for value in (getattr(holder, "eos_token_id", None) for holder in holders):
            ids += value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        return tuple(dict.fromkeys(int(i) for i in ids))

    def to(self, device: torch.device | str) -> HFTarget:
        """Move the weights in place and return the target."""
        if torch.device(device) != self.device:
            unpack_linears(self.model)
            self.model.to(device)
            self.head = self._new_head()
            self._prepare_decoding()
        return self

    def _prepare_decoding(self) -> None:
        """Fuse and pack the weights for cached forwards, as far as family, device and dtype allow."""
        if LeanDecoder.fits(self._decoder, self.config):
            self._lean = LeanDecoder(self._decoder, self.config, pack=self._pack)
        elif self._pack:
            pack_linears(self._decoder)

    @torch.no_grad()
    def embed(self, ids: Tensor) -> Tensor:
        """Frozen input embedding, the family's scaling included: ``[...]`` int64 to ``[..., H]``."""
        out = self._embedding(ids)
        return out if self._embedding_multiplier == 1.0 else out * self._embedding_multiplier

    def new_cache(self, rows: int, capacity: int) -> KeyValueCache:
        """Empty cache for ``rows`` requests of at most ``capacity`` tokens."""
        return KeyValueCache(
            self.spec.num_layers,
            rows,
            capacity,
            self.spec.num_key_value_heads,
            self.spec.head_dim,
            self.dtype,
            self.device,
        )

    @torch.no_grad()
    def forward(self, input_ids: Tensor, cache: KeyValueCache, *, features: bool = True) -> TargetOutput:
        """Run ``[N, n]`` tokens behind the cached ones; the cache's lengths do not move.

        Args:
            input_ids: ``[N, n]`` int64.
            cache: Cache of N rows; keys and values are written at ``lengths + 0..n-1`` of each row.
            features: Whether the taps are returned.

        Raises:
            ValueError: If the rows of the cache differ or its capacity does not suffice.
        """
        rows, fresh = input_ids.shape
        if cache.rows != rows:
            raise ValueError(f"{rows} rows of tokens do not fit a cache of {cache.rows} rows")
        taps = frozenset(self.spec.taps) if features else frozenset()
        if self._lean is not None:
            with self._own_precision():
                hidden, outputs = self._lean(input_ids, cache, taps)
            return TargetOutput(hidden, self._concatenated(outputs) if features else None)
        where = cache.positions(fresh)
        with running(Pass(taps, cache=cache, fresh=fresh)) as current, self._own_precision():
            out = self._decoder(
                input_ids=input_ids,
                # drafts behind the context's end are never accepted, but learned positions end there
                position_ids=where.clamp(max=self.spec.max_position_embeddings - 1),
                use_cache=True,
                **{self._cache_keyword: CacheBridge(cache, where)},
            )
        return TargetOutput(out.last_hidden_state, self._concatenated(current.outputs) if features else None)

    @torch.no_grad()
    def features(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        *,
        last_hidden: bool = False,
    ) -> TargetOutput:
        """Taps of whole rows for training; never logits, and no layer above the last tap unless needed.

        Args:
            input_ids: ``[N, L]`` int64, right-padded or packed.
            position_ids: ``[N, L]`` int64 (default: counted from 0 in every document).
            document_ids: ``[N, L]`` int64, -1 for padding; a token sees its own document only. Without it each row is
                one document (right padding is then harmless, since attention is causal).
            last_hidden: Whether the hidden state behind the final norm is returned as well.

        Returns:
            ``features`` ``[N, L, T * H]`` and, if asked for, ``hidden`` ``[N, L, H]``; arbitrary but finite at padding.
        """
        if document_ids is not None and position_ids is None:
            position_ids = _restarting(document_ids)
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        packed = document_ids is not None and bool((document_ids > 0).any())
        current = Pass(
            frozenset(self.spec.taps),
            stop_after=None if last_hidden else max(self.spec.taps),
            document_ids=document_ids if packed else None,
            explicit=self._explicit,
        )
        hidden = None
        with running(current), self._own_precision():
            hidden = self._decoder(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
        return TargetOutput(hidden, self._concatenated(current.outputs))

    def _own_precision(self) -> torch.autocast:
        """The target computes in its own dtype, whatever the precision of the training around it."""
        return torch.autocast(self.device.type, enabled=False)

    def _concatenated(self, outputs: dict[int, Tensor]) -> Tensor:
        return torch.cat([outputs[tap] for tap in self.spec.taps], -1)


def _restarting(document_ids: Tensor) -> Tensor:
    """Positions ``[N, L]`` that restart at 0 wherever the document changes."""
    where = torch.arange(document_ids.shape[1], device=document_ids.device).expand_as(document_ids)
    change = torch.ones_like(document_ids, dtype=torch.bool)
    change[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    return where - torch.where(change, where, torch.zeros_like(where)).cummax(1).values
