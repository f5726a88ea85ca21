"""Supervised fine-tuning with TRL and LoRA of PEFT, on a GPT-2 with random weights and a tokenizer made here."""

import tempfile

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, PrinterCallback
from trl import SFTConfig, SFTTrainer

vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", *(f"w{i}" for i in range(98))])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<eos>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=32, n_embd=64, n_layer=2, n_head=4))
    tokens = torch.randint(2, 100, (300, 24), generator=torch.Generator().manual_seed(1)).tolist()
    trainer = SFTTrainer(
        model=model,
        processing_class=tokenizer,
        train_dataset=Dataset.from_dict({"input_ids": tokens}),
        peft_config=LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True),
        args=SFTConfig(
            output_dir=folder,
            max_steps=52,
            per_device_train_batch_size=4,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            ddp_backend="gloo",
            max_length=24,
            gradient_checkpointing=False,
            bf16=False,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(entry["step"], repr(entry["loss"]))
    torch.distributed.barrier()
torch.distributed.destroy_process_group()
