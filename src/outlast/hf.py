"""Hugging Face's Trainer on outlast. It needs transformers and accelerate: `outlast[hf]`.

import outlast.hf

run = outlast.join()  # before TrainingArguments
args = TrainingArguments(...)
trainer = outlast.hf.Trainer(model=model, args=args, train_dataset=data)
trainer.train()
"""

from outlast.runtime.worker.adapters.hf_trainer import Trainer

__all__ = ["Trainer"]
