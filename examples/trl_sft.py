"""TRL's SFTTrainer under outlast: a GPT-2 of two layers, made from its configuration.

    pip install 'outlast[torch,hf]' trl
    outlast run --nproc-per-node 2 examples/trl_sft.py

`outlast.hf.Trainer` is named first among the base classes, so that its loop takes the place of
Trainer's, and everything else is TRL's. Kill a worker: no update is lost, and the digest at the end
is that of a run that was left alone. This is an example and no promise. It was tried with TRL 1.16:
rank 1 was killed at step 81 of 400, and the digests of both ranks were those of a calm run.
"""

from __future__ import annotations

import argparse

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import outlast
import outlast.hf


class Trainer(outlast.hf.Trainer, SFTTrainer):
    """SFTTrainer with each update as a step of outlast."""


def tokenizer() -> PreTrainedTokenizerFast:
    words = {"<pad>": 0, "<eos>": 1, **{f"w{number}": number + 2 for number in range(62)}}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<pad>")),
        pad_token="<pad>",
        eos_token="<eos>",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", default="runs/trl", help="Trainer's output_dir")
    given = parser.parse_args()

    run = outlast.join()  # in front of SFTConfig, which makes a process group otherwise
    args = SFTConfig(
        output_dir=given.out,
        max_steps=given.steps,
        per_device_train_batch_size=4,
        learning_rate=3e-3,
        max_length=16,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    rows = [[2 + (7 * row + place) % 60 for place in range(16)] for row in range(256)]
    torch.manual_seed(0)
    trainer = Trainer(
        model=GPT2LMHeadModel(
            GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
        ),
        args=args,
        train_dataset=Dataset.from_dict({"input_ids": rows}),
        processing_class=tokenizer(),
    )
    trainer.train()
    print(f"digest {run.rank} {outlast.digest(trainer.model)}", flush=True)


if __name__ == "__main__":
    main()
