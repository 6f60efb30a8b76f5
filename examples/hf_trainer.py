"""Hugging Face's Trainer under outlast: a GPT-2 of two layers, made from its configuration.

    pip install 'outlast[torch,hf]'
    outlast run --nproc-per-node 2 examples/hf_trainer.py

Three lines differ from the same script for torchrun: `import outlast.hf`, `outlast.join()`, and
`outlast.hf.Trainer` in place of `transformers.Trainer`. Kill a worker: no step is lost, and
Trainer's own checkpoints are not needed. The digest at the end is that of a run that was left
alone.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

import outlast
import outlast.hf


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards, from a start that the index gives."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) + 7 * index) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="runs/hf", help="Trainer's output_dir")
    given = parser.parse_args()

    run = outlast.join()  # in front of TrainingArguments, which makes a process group otherwise
    args = TrainingArguments(
        output_dir=given.out,
        max_steps=given.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        warmup_steps=5,
        logging_steps=5,
        save_steps=20,
        eval_strategy="steps",
        eval_steps=10,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    trainer = outlast.hf.Trainer(
        model=model, args=args, train_dataset=Counting(), eval_dataset=Counting()
    )
    trainer.train()
    print(f"digest {run.rank} {outlast.digest(model)}", flush=True)


if __name__ == "__main__":
    main()
