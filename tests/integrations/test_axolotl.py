"""axolotl's plugin, held against axolotl 0.19 where it is installed.

It seldom is: it brings CUDA's kernels. Elsewhere a stand-in of two modules calls the hooks as axolotl's own
source does: ``integrations/base.py`` (``BasePlugin``, ``load_plugin``), ``core/builders/causal.py``
(``get_trainer_cls(cfg)``, then the trainer by keywords), and ``core/trainers/mixins/scheduler.py``
(``create_lr_scheduler(cfg, trainer=, optimizer=, num_training_steps=)``).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hdet
from tests.integrations import llama

pytest.importorskip("transformers", reason="make test-integrations installs Transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # axolotl's own and its dependencies'

PLUGIN = "hdet.integrations.axolotl.HDETPlugin"


class Settings(dict):  # type: ignore[type-arg]
    """axolotl's DictDefault: what is not set is None."""

    def __missing__(self, _: str) -> None:
        return None


def stand_in() -> dict[str, ModuleType]:
    from transformers import Trainer

    class BasePlugin:
        def get_trainer_cls(self, cfg: Any) -> None:
            return None

        def create_lr_scheduler(
            self, cfg: Any, trainer: Any, optimizer: Any, num_training_steps: int
        ) -> None:
            return None

    class AxolotlTrainer(Trainer):
        plugin: Any = None

        def __init__(
            self,
            *_args: Any,
            bench_data_collator: Any = None,
            eval_data_collator: Any = None,
            dataset_tags: Any = None,
            **kwargs: Any,
        ) -> None:
            super().__init__(*_args, **kwargs)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = self.plugin.create_lr_scheduler(
                Settings(), trainer=self, optimizer=optimizer, num_training_steps=num_training_steps
            )
            return self.lr_scheduler

    names = ("axolotl", "axolotl.integrations", "axolotl.integrations.base")
    names += ("axolotl.core", "axolotl.core.trainers", "axolotl.core.trainers.base")
    modules = {name: ModuleType(name) for name in names}
    modules["axolotl.integrations.base"].BasePlugin = BasePlugin  # type: ignore[attr-defined]
    modules["axolotl.core.trainers.base"].AxolotlTrainer = AxolotlTrainer  # type: ignore[attr-defined]
    return modules


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """As axolotl's ``load_plugin`` makes it, by its dotted name."""
    if importlib.util.find_spec("axolotl") is None:
        for name, module in stand_in().items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(
            "hdet.integrations.version", lambda name: "0.19.0" if name == "axolotl" else version(name)
        )
    module_name, class_name = PLUGIN.rsplit(".", 1)
    with llama.launched(0, 1):
        yield getattr(importlib.import_module(module_name), class_name)()
    sys.modules.pop(module_name, None)


def arguments(folder: Path, **settings: Any) -> Any:
    try:
        from axolotl.core.training_args import AxolotlTrainingArguments
    except ImportError:
        return llama.arguments(folder, **settings)
    plain = llama.arguments(folder, **settings)
    kept = {"max_steps", "per_device_train_batch_size", "per_device_eval_batch_size", "save_steps"}
    given = {name: getattr(plain, name) for name in kept}
    given |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "logging_strategy": "no"}
    given |= {"remove_unused_columns": False, "dataloader_pin_memory": False, "seed": 1}
    return AxolotlTrainingArguments(output_dir=str(folder), lr_scheduler_type="cosine", **given)


def collate(rows: list[dict[str, Any]]) -> Any:
    return llama.collate(None, rows)


class Rows(list):  # type: ignore[type-arg]
    """axolotl asks a dataset for its columns."""

    column_names = None

    def select(self, numbers: list[int]) -> Rows:
        return Rows(self[n] for n in numbers)


def built(kind: type, folder: Path, **settings: Any) -> Any:
    """As ``HFCausalTrainerBuilder.build`` makes a trainer."""
    return kind(
        model=llama.model(),
        train_dataset=Rows(llama.data()),
        eval_dataset=Rows(llama.data(200_000, 16)),
        args=arguments(folder, **settings),
        data_collator=collate,
        callbacks=[],
        eval_data_collator=collate,
        bench_data_collator=collate,
        dataset_tags=["counting"],
        processing_class=None,
    )


def test_a_run_from_the_yaml_of_a_user(plugin: Any, tmp_path: Path) -> None:
    """``plugins: [hdet.integrations.axolotl.HDETPlugin]``; the last checkpoint holds what finish_ loaded."""
    from axolotl.core.trainers.base import AxolotlTrainer
    from safetensors.torch import load_file

    kind = plugin.get_trainer_cls(Settings(learning_rate=1e-4, plugins=[PLUGIN]))
    assert issubclass(kind, AxolotlTrainer)
    trainer = built(kind, tmp_path, max_steps=60, save_strategy="steps", save_steps=50)
    assert len(trainer.train_dataset) == llama.SAMPLES - 32, "eight batches of four are the probe's"
    trainer.train()
    assert isinstance(trainer.auto, hdet.AutoLR)
    assert trainer.auto.finished
    assert trainer.auto.best.loss < 3.4, "it began at 3.5"
    saved = llama.model()
    saved.load_state_dict(load_file(tmp_path / "checkpoint-60" / "model.safetensors"), strict=False)
    assert llama.digest(saved) == llama.digest(trainer.model)


def test_where_another_plugin_brings_the_trainer_it_raises(plugin: Any, tmp_path: Path) -> None:
    from axolotl.core.trainers.base import AxolotlTrainer

    create = partial(plugin.create_lr_scheduler, Settings(), optimizer=None, num_training_steps=60)
    theirs = AxolotlTrainer.__new__(AxolotlTrainer)
    with pytest.raises(ValueError, match="got AxolotlTrainer; name this plugin first in plugins"):
        create(trainer=theirs)


@pytest.mark.parametrize("name", ["rl", "reward_model", "trainer_cls"])
def test_settings_that_need_another_trainer_raise(plugin: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"got {name}='dpo', which needs another one; leave the plugin out"):
        plugin.get_trainer_cls(Settings({name: "dpo"}))
