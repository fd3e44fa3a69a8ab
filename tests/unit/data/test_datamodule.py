import lzma

import pytest
import torch
from data_fakes import FakeTarget, ids, many_rows, tokenizer, write_jsonl
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from specdraft.data import CachedFeatures, ChatDataModule
from specdraft.types import DraftBatch


@pytest.fixture
def path(tmp_path):
    return write_jsonl(tmp_path / "rows.jsonl", many_rows(40))


class Recorder(LightningModule):
    """Notes the batches that it is given, by their rows."""

    def __init__(self, needs_last_hidden=False):
        super().__init__()
        self.target = FakeTarget()
        self.needs_last_hidden = needs_last_hidden
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.batches = [], []

    def training_step(self, batch, index):
        self.seen.append((self.current_epoch, index, [tuple(row) for row in batch.input_ids.tolist()]))
        self.batches.append(batch)
        return self.weight * 1.0

    def validation_step(self, batch, index):
        self.batches.append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def trainer(folder, *callbacks, **options):
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=list(callbacks),
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"num_sanity_val_steps": 0, "limit_val_batches": 1, **options},
    )


def test_batches_are_right_padded(path):
    target = FakeTarget()
    data = ChatDataModule(path, batch_size=8, val_fraction=0).connect(target)
    batch = next(iter(data.train_dataloader()))
    assert isinstance(batch, DraftBatch)
    rows = {row.id: row for row in data.rows("train")}
    assert set(batch.families) == {"even", "odd"}
    encoder = data._connected()
    expected = {tuple(e.input_ids): e.loss_mask for e in map(encoder.encode, rows.values())}
    lengths = (batch.document_ids >= 0).sum(1).tolist()
    assert max(lengths) == batch.input_ids.shape[1]
    for row, length in enumerate(lengths):
        assert batch.document_ids[row].tolist() == [0] * length + [-1] * (batch.input_ids.shape[1] - length)
        assert batch.position_ids[row].tolist() == list(range(batch.input_ids.shape[1]))
        assert batch.loss_mask[row, :length].tolist() == expected[tuple(batch.input_ids[row, :length].tolist())]
        assert not batch.loss_mask[row, length:].any()
    assert batch.features is None
    assert data.val_dataloader() == []


def test_token_counts_are_those_of_the_labels(path):
    data = ChatDataModule(path, val_fraction=0.2).connect(FakeTarget())
    expected = torch.zeros(len(FakeTarget().tokenizer), dtype=torch.int64)
    for row in data.rows("train"):
        encoded = data._connected().encode(row)
        for token, marked in zip(encoded.input_ids, encoded.loss_mask, strict=True):
            expected[token] += marked
    assert torch.equal(data.token_counts(), expected)
    assert expected[ids(FakeTarget().tokenizer, "<|im_end|>")[0]] == len(data.rows("train"))


def test_splits_families_and_subsets(path):
    data = ChatDataModule(path, val_fraction=0.2, families=["even"], max_rows=10)
    train, val = ({row.id for row in data.rows(name)} for name in ("train", "val"))
    assert len(train) == 10
    assert val
    assert not train & val
    assert {row.family for row in data.rows("train")} == {"even"}
    assert data.rows("test") == data.rows("val")
    # the subset is of the training rows: what is held out does not depend on it
    assert {row.id for row in ChatDataModule(path, val_fraction=0.2, families=["even"]).rows("val")} == val


def test_own_validation_and_test_files(path, tmp_path):
    val = write_jsonl(tmp_path / "val.jsonl", many_rows(3, 100))
    test = write_jsonl(tmp_path / "test.jsonl", many_rows(2, 200))
    data = ChatDataModule([path], val, [test]).connect(FakeTarget())
    assert [len(data.rows(name)) for name in ("train", "val", "test")] == [40, 3, 2]
    assert [prompt.id for prompt in data.prompts("test")] == ["r200", "r201"]
    assert len(data.test_dataloader()) == 1


def test_packaged_data_comes_with_its_held_out_rows(tmp_path):
    import json

    for part, start in (("train", 0), ("heldout", 50)):
        lines = "".join(json.dumps(row) + "\n" for row in many_rows(5, start))
        (tmp_path / f"{part}.jsonl.xz").write_bytes(lzma.compress(lines.encode()))
    data = ChatDataModule("smollm2-chat", packaged_folder=str(tmp_path))
    assert [row.id for row in data.rows("train")] == [f"r{i}" for i in range(5)]
    assert [row.id for row in data.rows("val")] == [f"r{i}" for i in range(50, 55)]


def test_prompts_end_where_the_response_starts(tmp_path):
    row = {
        "id": "x",
        "family": "chat",
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "how are you"},
            {"role": "assistant", "content": "fine"},
        ],
    }
    recorded = {"id": "y", "prompt": "a", "response": "b", "prompt_ids": [11, 12], "response_ids": [13, 3, 14]}
    target = FakeTarget()
    data = ChatDataModule(write_jsonl(tmp_path / "a.jsonl", [row, recorded]), val_fraction=0).connect(target)
    first, second = data.prompts("train")
    assert (first.id, first.family, first.text) == ("x", "chat", "how are you")
    assert first.prompt_ids == ids(
        target.tokenizer,
        "<|im_start|> user NL hello <|im_end|> NL <|im_start|> assistant NL hi <|im_end|> NL "
        "<|im_start|> user NL how are you <|im_end|> NL <|im_start|> assistant NL",
    )
    assert second.prompt_ids == [11, 12]
    # recorded tokens win over the text
    tokens = data.tokens("train")
    assert tokens.tokens(1).tolist() == [11, 12, 13, 3, 14]
    assert tokens.mask(1).tolist() == [False, False, True, True, False]


def test_unusable_rows_are_counted_by_reason(tmp_path):
    good = many_rows(3)
    bad = [
        {"prompt": "a", "response": ""},
        {"prompt": "b", "response": ""},
        {"messages": [{"role": "user", "content": "a"}]},
        {"prompt": " ".join("abcdefg" * 9), "response": "a b"},
    ]
    path = write_jsonl(tmp_path / "mixed.jsonl", good + bad)
    data = ChatDataModule(path, val_fraction=0, max_length=40).connect(FakeTarget())
    expected = r"kept 3 of 7 rows: 2 empty response, 1 no assistant turn, 1 too long.*mixed\.jsonl:4: empty response"
    with pytest.warns(UserWarning, match=expected):
        assert len(data.tokens("train")) == 3


def test_a_file_without_any_usable_row_is_an_error(path, tmp_path):
    useless = write_jsonl(tmp_path / "useless.jsonl", [{"prompt": "a", "response": ""}] * 2)
    data = ChatDataModule([path, useless], val_fraction=0).connect(FakeTarget())
    with pytest.raises(ValueError, match=r"no row of .*useless\.jsonl can be supervised; .*useless\.jsonl:1: empty"):
        data.tokens("train")


def test_ids_of_another_vocabulary_are_refused(tmp_path):
    rows = [{"prompt_ids": [1], "response_ids": [2, 999]}]
    data = ChatDataModule(write_jsonl(tmp_path / "a.jsonl", rows), val_fraction=0).connect(FakeTarget())
    with pytest.raises(ValueError, match=r"a\.jsonl:1: token 999 is outside the target's vocabulary"):
        data.tokens("train")


def test_plain_text_is_announced_once(path):
    data = ChatDataModule(path, val_fraction=0).connect(FakeTarget(tokenizer(None, eos="<eos>")))
    with pytest.warns(UserWarning, match="no chat template") as caught:
        assert len(data.tokens("train")) == len(data.prompts("train"))
    assert sum("no chat template" in str(item.message) for item in caught) == 1


@pytest.mark.parametrize("last_hidden", [False, True])
def test_cached_batches_equal_online_features(path, tmp_path, last_hidden):
    module = Recorder(last_hidden)
    data = ChatDataModule(path, features=CachedFeatures(str(tmp_path / "cache"), "float32"), batch_size=5)
    trainer(tmp_path, max_epochs=1, limit_train_batches=2).fit(module, data)
    assert len(module.batches) >= 3  # validation included
    for batch in module.batches:
        with torch.no_grad():
            expected = module.target.features(
                batch.input_ids, batch.position_ids, batch.document_ids, last_hidden=last_hidden
            )
        real = batch.document_ids >= 0
        assert torch.equal(batch.features[real], expected.features[real])
        assert not batch.features[~real].any()
        assert (batch.last_hidden is not None) == last_hidden
        if last_hidden:
            assert torch.equal(batch.last_hidden[real], expected.hidden[real])


def fit(path, folder, epochs, *, ckpt=None, callback=(), workers=0, **options):
    module = Recorder()
    data = ChatDataModule(path, batch_size=6, num_workers=workers)
    trainer(folder, *callback, max_epochs=epochs, **options).fit(module, data, ckpt_path=ckpt, weights_only=True)
    return module.seen


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [2, 7, 9])  # 7 batches an epoch: in the first, at its end, in the second
def test_training_resumes_at_the_exact_next_batch(path, tmp_path, step, workers):
    whole = fit(path, tmp_path, 3)
    per_epoch = len(whole) // 3
    assert per_epoch == 7
    assert len({str(batches) for _, _, batches in whole}) == len(whole)
    keep = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=step, save_top_k=-1)
    assert fit(path, tmp_path, 3, callback=[keep], workers=workers) == whole
    resumed = fit(path, tmp_path, 3, ckpt=str(tmp_path / f"step={step}.ckpt"))
    assert resumed == whole[step:]


@pytest.mark.parametrize("options", [{"save_on_train_epoch_end": True}, {"save_on_train_epoch_end": False}])
def test_a_checkpoint_of_a_finished_epoch_resumes_with_the_next(path, tmp_path, options):
    whole = fit(path, tmp_path, 3)
    keep = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, every_n_epochs=1, **options)
    fit(path, tmp_path, 1, callback=[keep])
    resumed = fit(path, tmp_path, 3, ckpt=str(tmp_path / "epoch=0.ckpt"))
    assert resumed == whole[7:]


def test_limited_epochs_still_start_new_orders(path, tmp_path):
    seen = fit(path, tmp_path, 3, limit_train_batches=2)
    whole = fit(path, tmp_path, 3)
    assert seen == [item for item in whole if item[1] < 2]


def test_overfitting_and_testing_run(path, tmp_path):
    module = Recorder()
    data = ChatDataModule(path, batch_size=6)
    trainer(tmp_path, max_epochs=2, overfit_batches=1).fit(module, data)
    assert [rows for _, _, rows in module.seen] == [module.seen[0][2]] * 2
    module.test_step = module.validation_step
    trainer(tmp_path).test(module, data, verbose=False)


def test_use_without_a_target_is_explained(path):
    with pytest.raises(RuntimeError, match="call connect"):
        ChatDataModule(path).tokens("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_fraction": 1.0}, r"val_fraction must be in \[0, 1\), got 1.0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"max_rows": 0}, "max_rows must be at least 1 or null, got 0"),
    ],
)
def test_options_out_of_range_are_refused(path, options, message):
    with pytest.raises(ValueError, match=message):
        ChatDataModule(path, **options)


def test_the_command_line_builds_it(path):
    from jsonargparse import ArgumentParser
    from lightning import LightningDataModule

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    config = parser.parse_args(
        [
            "--data=ChatDataModule",
            f"--data.train={path}",
            "--data.features=CachedFeatures",
            "--data.features.dtype=float32",
            "--data.template_options={enable_thinking: false}",
        ]
    )
    data = parser.instantiate_classes(config).data
    assert data.features.dtype == "float32"
    assert data.template_options == {"enable_thinking": False}
