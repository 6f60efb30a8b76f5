"""Use Hugging Face's Trainer under outlast.

    import outlast.hf

    run = outlast.join()  # before TrainingArguments
    args = TrainingArguments(...)
    trainer = outlast.hf.Trainer(model=model, args=args, train_dataset=data)
    trainer.train()

It needs the packages transformers and accelerate, which `outlast[hf]` installs. `Trainer` says what
it does not support.
"""

from outlast.runtime.worker.adapters.hf_trainer import Trainer

__all__ = ["Trainer"]
