"""From bytes to token ids and back: learned byte pairs, literal pieces, other people's files."""

from llmcy.tokenizer.byte_pair import BytePairTokenizer, EncodingStep, EncodingTrace
from llmcy.tokenizer.json_tokenizer import JsonTokenizer
from llmcy.tokenizer.learn import BpeRule, LearnedBpe, learn_bpe
from llmcy.tokenizer.literal import LiteralTokenizer

Tokenizer = BytePairTokenizer | LiteralTokenizer | JsonTokenizer
TextTokenizer = BytePairTokenizer | JsonTokenizer

__all__ = [
    "BpeRule",
    "BytePairTokenizer",
    "EncodingStep",
    "EncodingTrace",
    "JsonTokenizer",
    "LearnedBpe",
    "LiteralTokenizer",
    "TextTokenizer",
    "Tokenizer",
    "learn_bpe",
]
