"""Sentence Transformers' trainer on a BERT with random weights and a vocabulary made here."""

import pathlib
import random
import tempfile

import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from transformers import BertConfig, BertModel, BertTokenizerFast, PrinterCallback

words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(95))]
with tempfile.TemporaryDirectory() as folder:
    torch.manual_seed(0)
    place = pathlib.Path(folder)
    (place / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(place / "vocab.txt")).save_pretrained(folder)
    sizes = dict(vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128)
    BertModel(BertConfig(max_position_embeddings=32, **sizes)).save_pretrained(folder)
    transformer = Transformer(folder, max_seq_length=24)
    model = SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")
    draw = random.Random(0)
    sentences = [" ".join(draw.choices(words[5:], k=12)) for _ in range(2 * 4 * 8 * 30)]
    data = Dataset.from_dict({"anchor": sentences[::2], "positive": sentences[1::2]})
    args = SentenceTransformerTrainingArguments(
        output_dir=folder,
        max_steps=52,
        per_device_train_batch_size=8,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=args, train_dataset=data, loss=MultipleNegativesRankingLoss(model)
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            print(entry["step"], repr(entry["loss"]))
    torch.distributed.barrier()
torch.distributed.destroy_process_group()
