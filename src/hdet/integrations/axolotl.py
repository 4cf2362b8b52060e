"""axolotl: a plugin for supervised training without a learning rate. In its YAML::

    plugins:
      - hdet.integrations.axolotl.HDETPlugin
    learning_rate: 1e-4  # axolotl asks for one; it is not read

The trainer is axolotl's own with :class:`hdet.integrations.transformers.HDETTrainerMixin` in front, so that
it does what that class does: batches set aside for the probe, the best weights in the last checkpoint, an
early stop that decays first.
"""

from __future__ import annotations

from typing import Any

from hdet.integrations import require
from hdet.integrations.transformers import HDETTrainerMixin

require("axolotl", "0.19")

from axolotl.integrations.base import BasePlugin  # noqa: E402 — require names a version that is too old

__all__ = ["HDETPlugin"]

#: Settings for which axolotl takes a trainer of its own that this one does not know.
_OTHER_TRAINERS = ("rl", "reward_model", "process_reward_model", "trainer_cls")


class HDETPlugin(BasePlugin):
    """Gives axolotl a trainer that runs AutoLR."""

    def get_trainer_cls(self, cfg: Any) -> type:
        """axolotl's hook: its trainer for supervised training, with AutoLR."""
        other = next((name for name in _OTHER_TRAINERS if cfg.get(name)), None)
        if other is not None:
            raise ValueError(
                "HDETPlugin: training must be supervised, by axolotl's own trainer, got "
                f"{other}={cfg[other]!r}, which needs another one; leave the plugin out"
            )
        # Not above: it imports plugins.
        from axolotl.core.trainers.base import AxolotlTrainer

        class HDETAxolotlTrainer(HDETTrainerMixin, AxolotlTrainer):
            """axolotl's trainer, with AutoLR."""

        return HDETAxolotlTrainer

    def create_lr_scheduler(self, cfg: Any, trainer: Any, optimizer: Any, num_training_steps: int) -> None:
        """axolotl's hook; our trainer does not call it, so the one that does is another plugin's."""
        raise ValueError(
            f"HDETPlugin: the trainer must be the one that this plugin gives, got {type(trainer).__name__}; "
            "name this plugin first in plugins:, and only one that brings a trainer"
        )
