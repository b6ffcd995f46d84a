"""Train a small transformer on the rows of digits, with the Trainer of transformers. README.md in the same directory explains it."""

import struct

import torch
import transformers

import trainmaster as tm


def parse(record: memoryview | bytes) -> dict[str, torch.Tensor]:
    """Return the pixels of a record, in 17 shades, as tokens. docs/formats/samples.md has the format."""
    version, kind, _, label, _ = struct.unpack_from("<BBxxfII", record)
    if (version, kind) != (3, 1):
        raise ValueError(f"expected a record of pixels, version 3, found version {version}, type {kind}")
    pixels = torch.frombuffer(bytearray(record[16:]), dtype=torch.uint8).long()
    return {"input_ids": pixels.clamp(max=16), "labels": torch.tensor(label)}


class Trainer(tm.hf.TrainerMixin, transformers.Trainer):  # type: ignore[misc] # transformers has no types
    """The Trainer with the batches of the job."""


def main() -> None:
    """Train to the end of the job, and measure the model on the test data."""
    transformers.set_seed(1)
    torch.set_num_threads(1)
    sizes = {"vocab_size": 17, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**sizes, **no_dropout, max_position_embeddings=64, num_labels=10, initializer_range=0.2)
    model = transformers.BertForSequenceClassification(config)
    loader = tm.torch.DataLoader("mnist/digits-0*", decode=parse, batch_size=32, num_workers=1)
    settings = transformers.TrainingArguments(
        "output", max_steps=1000, learning_rate=2e-3, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True
    )
    Trainer(model, settings, loader=loader).train()
    test = torch.utils.data.default_collate([parse(r) for r in tm.read_records("mnist/digits-test-*")])
    model.eval()
    with torch.no_grad():
        accuracy = (model(test["input_ids"]).logits.argmax(1) == test["labels"]).float().mean().item()
    print(f"test accuracy {accuracy:.1f}")
    loader.close()


if __name__ == "__main__":
    main()
