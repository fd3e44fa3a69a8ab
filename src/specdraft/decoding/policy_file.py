"""The file that ``specdraft tune`` writes and ``--policy`` reads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from specdraft.decoding.policy import BlockPolicy, RunningSurvival, StaticTable, TunedPolicy
from specdraft.decoding.sampling import SamplingParams
from specdraft.decoding.tuned import TunedTables
from specdraft.scratch import write_text

POLICIES: Mapping[str, type[TunedPolicy]] = {cls.__name__: cls for cls in (StaticTable, RunningSurvival)}


@dataclass(frozen=True)
class MadeFor:
    """What a policy holds for; anything else decodes losslessly too, only maybe not fastest.

    Attributes:
        checkpoint: Path of the checkpoint, or words for weights that are not in a file.
        digest: Start of the SHA-256 of the checkpoint, empty where there is none.
        device: Device by name.
        dtype: Types of target and drafter.
        top_p: Nucleus of the target's distribution; matters at ``temperature > 0``.
        top_k: Candidates of the target's distribution, 0 for all; likewise.
    """

    checkpoint: str
    digest: str
    device: str
    dtype: str
    top_p: float = 1.0
    top_k: int = 0

    @classmethod
    def of(
        cls,
        device: torch.device,
        target: torch.dtype,
        drafter: torch.dtype,
        checkpoint: str,
        digest: str = "",
        params: SamplingParams | None = None,
    ) -> MadeFor:
        """Describe what is about to decode.

        Args:
            device: Device of the target.
            target: Type of the target.
            drafter: Type of the drafter.
            checkpoint: Path of the checkpoint, or words where there is none.
            digest: What :func:`specdraft.checkpoints.digest` says of the file or folder; empty where there is none.
            params: How tokens are drawn (default: greedy).
        """
        types = " / ".join(str(dtype).removeprefix("torch.") for dtype in (target, drafter))
        drawn = params or SamplingParams()
        return cls(checkpoint, digest, device_name(device), types, drawn.top_p, drawn.top_k)

    def differences(self, other: MadeFor) -> list[str]:
        """What differs from the circumstances of ``other``, each with both values."""
        out = []
        if self.digest != other.digest or not self.digest:
            out.append(f"checkpoint {_named(self)}, not {_named(other)}")
        for name in ("device", "dtype"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                out.append(f"{name} {mine}, not {theirs}")
        return out


def device_name(device: torch.device) -> str:
    """A device as far as latencies depend on it: the GPU's name, or instruction set and threads of the CPU."""
    if device.type == "cuda":
        return f"cuda {torch.cuda.get_device_name(device)}"
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return device.type


@dataclass(frozen=True)
class PolicyFile:
    """A policy as it lies in a file.

    Attributes:
        policy: Class of the policy: ``StaticTable``, ``RunningSurvival``, or the dotted path of a
            :class:`~specdraft.decoding.policy.TunedPolicy`.
        made_for: What it was measured with.
        tables: One per temperature.
    """

    policy: str
    made_for: MadeFor
    tables: tuple[TunedTables, ...]

    def make(self, temperature: float) -> BlockPolicy:
        """The policy for a temperature; that of the nearest one if it was not measured."""
        return policy_class(self.policy).from_tables(self.nearest(temperature))

    def nearest(self, temperature: float) -> TunedTables:
        """The tables whose temperature is nearest."""
        return min(self.tables, key=lambda tables: abs(tables.temperature - temperature))

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        values = {
            "policy": self.policy,
            "made_for": asdict(self.made_for),
            "tables": [
                {
                    "temperature": t.temperature,
                    "nested": t.nested,
                    "choices": {w: dict(levels) for w, levels in t.choices.items()},
                    "survival": {
                        w: {size: [round(s, 6) for s in curve] for size, curve in curves.items()}
                        for w, curves in t.survival.items()
                    },
                    "latency_ms": {
                        size: {rows: round(1e3 * seconds, 4) for rows, seconds in levels.items()}
                        for size, levels in t.latency.items()
                    },
                }
                for t in self.tables
            ],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=120))

    @classmethod
    def read(cls, path: str | Path) -> PolicyFile:
        """Inverse of :meth:`write`.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: Naming the file and what is wrong in it.
        """
        if not Path(path).is_file():
            raise FileNotFoundError(f"no policy at {path}; make one with specdraft tune --out {path}")
        try:
            values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
            tables = tuple(_tables(entry) for entry in values["tables"])
            if not tables:
                raise ValueError("it holds no tables")
            policy_class(values["policy"])
            return cls(values["policy"], MadeFor(**values["made_for"]), tables)
        except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
            what = f"there is no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is no policy of specdraft tune: {what}; make it anew") from error


def load_policy(path: str | Path, here: MadeFor, temperature: float, block_size: int) -> BlockPolicy:
    """Make the policy of a file, with a warning where it was made for something else.

    Args:
        path: File written by ``specdraft tune``.
        here: What is about to decode.
        temperature: Sampling temperature.
        block_size: Block size that the drafter was trained with.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no policy, or chooses larger blocks than trained.
    """
    file = PolicyFile.read(path)
    policy = file.make(temperature)
    if max(policy.sizes) > block_size:
        raise ValueError(
            f"policy {path} chooses block sizes up to {max(policy.sizes)}, but the drafter of {here.checkpoint} was "
            f"trained with {block_size}; run specdraft tune for this checkpoint"
        )
    different = file.made_for.differences(here)
    known = file.nearest(temperature).temperature
    if known != temperature:
        different.append(f"temperature {known:g}, not {temperature:g}")
    mine, theirs = (f"top_p {each.top_p:g}, top_k {each.top_k}" for each in (file.made_for, here))
    if temperature > 0 and mine != theirs:
        different.append(f"{mine}, not {theirs}")
    for difference in different:
        warnings.warn(
            f"policy {path} was made for {difference}: outputs stay exact, but it may not choose the fastest block "
            "size; run specdraft tune again",
            stacklevel=2,
        )
    return policy


def policy_class(name: str) -> type[TunedPolicy]:
    """The class that a file names.

    Raises:
        ValueError: If there is none, or it cannot be made from tables.
    """
    found: Any = POLICIES.get(name)
    if found is None and "." in name:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(import_module(module), attribute, None)
        except ImportError as error:
            raise ValueError(f"policy {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, TunedPolicy)):
        raise ValueError(f"policy {name!r} is unknown; use {', '.join(POLICIES)} or the path of a TunedPolicy")
    return found


def _tables(values: dict[str, Any]) -> TunedTables:
    return TunedTables(
        float(values["temperature"]),
        values["survival"],
        {size: {rows: ms / 1e3 for rows, ms in levels.items()} for size, levels in values["latency_ms"].items()},
        values["choices"],
        bool(values["nested"]),
    )


def _named(made_for: MadeFor) -> str:
    return f"{made_for.checkpoint} ({made_for.digest})" if made_for.digest else made_for.checkpoint
