"""Command line: LightningCLI for training, plus commands that use a trained drafter.

The components are imported here so that YAML can name them without their modules.
"""

from __future__ import annotations

import difflib
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from inspect import isclass, signature
from typing import Any, NoReturn

from jsonargparse import auto_cli
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from typing_extensions import override

import specdraft.callbacks
import specdraft.correctors
import specdraft.drafters
import specdraft.objectives
from specdraft.arguments import option_words
from specdraft.bench import bench
from specdraft.checkpoints import AtomicCheckpointIO
from specdraft.commands import generate
from specdraft.compare import compare
from specdraft.data import ChatDataModule
from specdraft.estimate import estimate
from specdraft.feature_cache import cache
from specdraft.interchange import export, inspect
from specdraft.module import DraftingModule
from specdraft.regenerate import regenerate
from specdraft.schedules import CosineWithWarmup  # noqa: F401  (short name in YAML)
from specdraft.tune import tune

COMMANDS: dict[str, Callable[..., Any]] = {
    "generate": generate,
    "regenerate": regenerate,
    "bench": bench,
    "tune": tune,
    "compare": compare,
    "export": export,
    "inspect": inspect,
}
# commands that take the options of fit
RUN_COMMANDS: dict[str, Callable[..., Any]] = {"cache": cache, "estimate": estimate}
# commands whose first words may be given without their option
POSITIONAL = {"inspect": "--path", "compare": "--runs"}


class Parser(LightningArgumentParser):
    """Adds the close match to an error about an unknown name."""

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        super().error(message + _close_matches(message), ex)
        raise SystemExit(2)


class SaveConfig(SaveConfigCallback):
    """Keep the protection of a run's ``config.yaml``, except for the run that is being resumed."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.overwrite = self.overwrite or bool(self.config.get("ckpt_path"))
        super().setup(trainer, pl_module, stage)


class SpecDraftCLI(LightningCLI):
    """``specdraft fit|validate|test|predict`` over :class:`DraftingModule` and :class:`ChatDataModule`."""

    def __init__(self, args: ArgsType = None, run: bool = True) -> None:
        super().__init__(
            DraftingModule,
            ChatDataModule,
            subclass_mode_data=True,
            save_config_callback=SaveConfig,
            auto_configure_optimizers=False,
            parser_class=Parser,
            args=args,
            run=run,
        )

    @override
    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        plugins = config.get("plugins") or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            config["plugins"] = [*plugins, AtomicCheckpointIO()]
        return super()._instantiate_trainer(config, callbacks)


class ConfiguredRun(SpecDraftCLI):
    """Model and data of a run that is not started, without a trainer and what it calls.

    Args:
        words: Options of ``specdraft fit``.
    """

    def __init__(self, words: Sequence[str]) -> None:
        own, sys.argv = sys.argv, sys.argv[:1]  # Lightning warns where both are given
        try:
            super().__init__(args=["fit", *words])
        finally:
            sys.argv = own

    @override
    def instantiate_classes(self) -> None:
        options = self.config.fit.trainer
        # they may need a machine, or packages, that the run has and this call has not
        options.callbacks, options.logger = None, None
        super().instantiate_classes()

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        return None  # type: ignore[return-value]

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        pass


def configured(words: Sequence[str]) -> tuple[DraftingModule, ChatDataModule, Any]:
    """Model and data of a run, and the options of its trainer.

    Args:
        words: Options of ``specdraft fit``.
    """
    run = ConfiguredRun(words)
    return run.model, run.datamodule, run.config.fit.trainer


def main(args: Sequence[str] | None = None) -> None:
    """Entry point of ``specdraft``.

    Args:
        args: Words of the command line without the program's name; None reads ``sys.argv``.
    """
    # of Lightning's own making: the words are those of the command line, and the other is about its internals
    warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
    warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`")
    words = list(sys.argv[1:] if args is None else args)
    if words and words[0] in COMMANDS:
        command = COMMANDS[words[0]]
        if words[0] in POSITIONAL and len(words) > 1 and not words[1].startswith("-"):
            words.insert(1, POSITIONAL[words[0]])
        auto_cli(command, args=option_words(command, words[1:]), as_positional=False, prog=f"specdraft {words[0]}")
        return
    if words and words[0] in RUN_COMMANDS:
        RUN_COMMANDS[words[0]](words[1:], configured)
        return
    if words in ([], ["-h"], ["--help"]):
        all_commands = {**COMMANDS, **RUN_COMMANDS}
        others = "\n".join(f"  {name:<12}{(f.__doc__ or '').splitlines()[0]}" for name, f in all_commands.items())
        print(f"Commands besides those below:\n{others}\n")
        words = ["--help"]
    SpecDraftCLI(args=words)


def _close_matches(message: str) -> str:
    """Names of ours that resemble a quoted or dotted word of an error message."""
    known = {
        name
        for package in (specdraft.drafters, specdraft.correctors, specdraft.objectives, specdraft.callbacks)
        for name in package.__all__
    } | {"ChatDataModule", "DraftingModule", "CosineWithWarmup"}
    known |= _option_names()
    found: list[str] = []
    for word in re.findall(r"[A-Za-z_][\w.]+", message):
        word = word.rsplit(".", 1)[-1]
        if word in known:
            continue
        found += [name for name in difflib.get_close_matches(word, known, n=1, cutoff=0.8) if name not in found]
    return f"\nDid you mean {', '.join(found)}?" if found else ""


def _option_names() -> set[str]:
    classes = [DraftingModule, ChatDataModule]
    for package in (specdraft.drafters, specdraft.correctors, specdraft.objectives, specdraft.callbacks):
        classes += [c for c in vars(package).values() if isclass(c)]
    return {name for c in classes for name in signature(c).parameters if name not in ("args", "kwargs")}


if __name__ == "__main__":
    main()


__all__ = ["COMMANDS", "SpecDraftCLI", "main"]
