"""LoRA by PEFT in Transformers, without a learning rate.
Run: python examples/lora.py

The adapters begin at B = 0, where most guesses of a learning rate are far off. Nothing is downloaded.
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

from hdet.integrations.transformers import HDETTrainer

VOCABULARY, LENGTH = 27, 24


def data(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    starts = torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed))
    rows = [(start + 2 * torch.arange(LENGTH)) % VOCABULARY for start in starts]
    return [{"input_ids": row, "labels": row} for row in rows]


def base() -> LlamaForCausalLM:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=LENGTH,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM")
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=150,
            per_device_train_batch_size=8,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = HDETTrainer(
            model=get_peft_model(base(), lora),
            args=args,
            train_dataset=data(1000, seed=0),
            eval_dataset=data(64, seed=1),
        )
        before = trainer.evaluate()["eval_loss"]
        trainer.train()
        after = trainer.evaluate()["eval_loss"]
        trainer.save_model()
        size = sum(file.stat().st_size for file in Path(folder).glob("adapter_model.*"))
        trainer.model = PeftModel.from_pretrained(base(), folder)
        again = trainer.evaluate()["eval_loss"]
        print(
            f"loss {before:.3f} -> {after:.3f}; {size} bytes of adapters; {again:.3f} when they are reloaded"
        )


if __name__ == "__main__":
    main()
