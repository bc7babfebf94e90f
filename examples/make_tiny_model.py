"""Write a tiny Llama with random weights and a byte tokenizer: a model for trying out real vLLM, no download.

    .venv-vllm/bin/python examples/make_tiny_model.py FOLDER

Needs torch, transformers, tokenizers and safetensors, which vLLM brings. The weights are drawn with a fixed seed and wide enough that what follows
depends on the whole prompt; the text is noise.
"""

from __future__ import annotations

import sys
from pathlib import Path

SEED = 7
SPREAD = 0.35
"""Standard deviation of the weights: with the usual 0.02 every prompt would go on with the same token."""


def make_tiny_model(folder: Path) -> None:
    """Write config, weights and tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        initializer_range=SPREAD,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        torch_dtype="float32",
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    words = [*special, *alphabet]
    words += [f"<extra{number}>" for number in range(config.vocab_size - len(words))]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=template,
    )
    fast.save_pretrained(folder)


if __name__ == "__main__":
    make_tiny_model(Path(sys.argv[1]))
    print(f"wrote {sys.argv[1]}")
