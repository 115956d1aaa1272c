"""Makes the test bed's model: a tiny Llama with random weights and a tokenizer of bytes.

usage: python -m testbed.model FOLDER [SEED]   (in the workers' environment)
"""

import sys
from pathlib import Path
from typing import Any, Final

VOCAB: Final = 259
"""256 bytes and three special tokens."""
CONTEXT_TOKENS: Final = 8192


def make(folder: Path, seed: int = 0) -> None:
    """Write the model and its tokenizer to ``folder``. Another ``seed`` gives other weights of the same shape."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        dtype="float32",
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)


def _tokenizer() -> Any:  # transformers is in the workers' environment alone
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    vocab = {token: index for index, token in enumerate(special + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=special[0],
        bos_token=special[1],
        eos_token=special[2],
        model_max_length=CONTEXT_TOKENS,
    )
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
    )
    return tokenizer


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
