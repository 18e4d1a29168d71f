"""
Write a model for vLLM that is tiny and has no weights: ``make_model.py FOLDER``, with the Python that vLLM runs in.

vLLM makes its weights up (``--load-format dummy``). The tokenizer knows words, one a token, so that every token of an
answer is text: an answer of many tokens that are no text would have empty chunks.
"""

import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<unk>")
WORDS = (*SPECIAL, "hello", *(f"w{number}" for number in range(1020)))
CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def main(folder: str) -> None:
    """Write the configuration and the tokenizer into a folder."""
    start, end, unknown = SPECIAL
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=unknown))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.WordPiece(prefix="##")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=start, eos_token=end, unk_token=unknown, pad_token=end
    )
    tokenizer.chat_template = CHAT
    tokenizer.save_pretrained(folder)
    LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
        bos_token_id=0,
        eos_token_id=1,
    ).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
