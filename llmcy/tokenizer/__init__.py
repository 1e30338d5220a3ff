"""From bytes to token ids and back: learned byte pairs, and literal pieces."""

from llmcy.tokenizer.byte_pair import BytePairTokenizer, EncodingStep, EncodingTrace
from llmcy.tokenizer.learn import BpeRule, LearnedBpe, learn_bpe
from llmcy.tokenizer.literal import LiteralTokenizer

__all__ = [
    "BpeRule",
    "BytePairTokenizer",
    "EncodingStep",
    "EncodingTrace",
    "LearnedBpe",
    "LiteralTokenizer",
    "learn_bpe",
]
