"""A script of transformers before its change to `07_hugging_face_script.py`."""

import torch
from torch.utils.data import TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def collator(rows):
    tokens = torch.stack([row[0] for row in rows])
    return {"input_ids": tokens, "labels": tokens}


def main():
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 256, "use_cache": False}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, num_attention_heads=4, **sizes))
    dataset = TensorDataset(torch.randint(0, 256, (50, 32)))
    args = TrainingArguments(
        output_dir="checkpoints",
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        num_train_epochs=2,
        weight_decay=0.1,
        logging_steps=4,
        save_strategy="epoch",
    )
    trainer = Trainer(model, args, train_dataset=dataset, data_collator=collator)
    trainer.train()
    trainer.save_model("llama")


if __name__ == "__main__":
    main()
