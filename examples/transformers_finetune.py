"""A Transformers Trainer without a learning rate: from scratch, then fine-tuned.
Run: python examples/transformers_finetune.py (or torchrun --nproc-per-node 2)

A small Llama learns the alphabet, then is fine-tuned on it backwards; nothing is downloaded.
"""

import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

from hdet.integrations.transformers import HDETTrainer

LETTERS = "abcdefghijklmnopqrstuvwxyz "
LENGTH = 24


def sentences(count: int, stride: int, seed: int) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(LETTERS), (count,), generator=draw)
    rows = [(start + stride * torch.arange(LENGTH)) % len(LETTERS) for start in starts]
    return [{"input_ids": row, "labels": row} for row in rows]


def train(model: LlamaForCausalLM, stride: int, steps: int, folder: str) -> HDETTrainer:
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=8,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = HDETTrainer(
        model=model,
        args=args,
        train_dataset=sentences(1000, stride, seed=0),  # some are set aside, to judge by
        eval_dataset=sentences(64, stride, seed=1),
    )
    trainer.train()
    return trainer


def main() -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(LETTERS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as folder:
        for name, stride in (("forwards", 1), ("backwards", -1)):
            trainer = train(model, stride, steps=120, folder=folder)
            loss = trainer.evaluate()["eval_loss"]
            if trainer.is_world_process_zero():
                print(f"{name}: loss {loss:.4f}, the best weights are of step {trainer.auto.best.step}")


if __name__ == "__main__":
    main()
