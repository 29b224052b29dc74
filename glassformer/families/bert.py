"""BERT: a post-norm encoder trained on masked tokens and on whether two sentences follow each other."""

from typing import Any

from glassformer.config import (
    Attention,
    Embed,
    FeedForward,
    Init,
    InputPosition,
    ModelConfig,
    Norm,
    Stack,
    Tokens,
    get_fact,
)
from glassformer.config.parts import LMHead, PretrainingHead, TaskHead
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, Rule, modules, same


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json."""
    c.require("position_embedding_type", "absolute", "no published model has relative positions of this kind")
    c.require("is_decoder", False, "an encoder run as a decoder is another architecture")
    c.require("add_cross_attention", False, "an encoder has nothing to attend to but itself")
    width, heads, dropout = c.hidden_size, c.num_attention_heads, c.hidden_dropout_prob
    position = InputPosition(kind="learned", length=c.max_position_embeddings)
    return ModelConfig(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(segments=c.type_vocab_size, position=position, norm=True, dropout=dropout),
        encoder=Stack(
            layers=c.num_hidden_layers,
            attention=Attention(
                heads=heads,
                head_dim=c.per_head("hidden_size", "num_attention_heads"),
                dropout=c.attention_probs_dropout_prob,
            ),
            ffn=FeedForward(hidden=c.intermediate_size, activation=c.activation("hidden_act")),
            placement="post",
            final_norm=False,
            dropout=dropout,
        ),
        tokens=Tokens(pad=c.pad_token_id),
        init=Init(std=c.initializer_range),
    )


def lm(c: ConfigReader) -> LMHead:
    """Build the masked-word head."""
    return LMHead(transform=c.activation("hidden_act"), bias=True, tied=c.tie_word_embeddings)


def dropout(c: ConfigReader) -> float:
    """Return the dropout before a task head's logits."""
    return c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies a text by its pooled first token."""
    return TaskHead(task="classify", labels=c.labels, pool="first", hidden="tanh", dropout=dropout(c))


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of heads: a head without its own dropout must not set it for the next one."""
    head = facts.head
    if isinstance(head, PretrainingHead):
        return {"tie_word_embeddings": head.lm.tied}
    has_dropout = isinstance(head, TaskHead) and head.task in ("classify", "tag")
    return {"classifier_dropout": get_fact(head, "dropout")} if has_dropout else {}


def lm_rules(head: str, at: str = "cls.predictions", inside: str = ".transform") -> tuple[Rule, ...]:
    """Return the weight rules of the masked-word head, which is called ``head`` here and ``at`` in the checkpoint."""
    return (
        *modules({f"{head}.transform": f"{at}{inside}.dense", f"{head}.norm": f"{at}{inside}.LayerNorm"}),
        same(f"{head}.out.weight", f"{at}.decoder.weight"),
        same(f"{head}.bias", f"{at}.bias", f"{at}.decoder.bias"),
    )


def token_heads(name: str) -> dict[str, HeadFormat]:
    """Return the heads with one output per token, which the descendants share."""
    return {
        "tag": HeadFormat(
            f"{name}ForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=dropout(c)),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat(f"{name}ForQuestionAnswering", span_head, modules({"head.out": "qa_outputs"})),
    }


def size(layers: int, width: int) -> dict[str, int]:
    """Return a config of the usual proportions: heads of width 64, feed-forward networks of 4 · width."""
    shape = {"num_hidden_layers": layers, "hidden_size": width}
    return {**shape, "num_attention_heads": width // 64, "intermediate_size": 4 * width}


LARGE = size(24, 1024)
POOL = TaskHead(task="pool", pool="first", hidden="tanh")
PAIR = TaskHead(task="pair", labels=("next", "random"), pool="first", hidden="tanh")
BODY_RULES = modules(
    {
        "embed.token": "embeddings.word_embeddings",
        "embed.position": "embeddings.position_embeddings",
        "embed.segment": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "encoder.blocks.{i}.attention.q": "encoder.layer.{i}.attention.self.query",
        "encoder.blocks.{i}.attention.k": "encoder.layer.{i}.attention.self.key",
        "encoder.blocks.{i}.attention.v": "encoder.layer.{i}.attention.self.value",
        "encoder.blocks.{i}.attention.o": "encoder.layer.{i}.attention.output.dense",
        "encoder.blocks.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
        "encoder.blocks.{i}.ffn.up": "encoder.layer.{i}.intermediate.dense",
        "encoder.blocks.{i}.ffn.down": "encoder.layer.{i}.output.dense",
        "encoder.blocks.{i}.ffn_norm": "encoder.layer.{i}.output.LayerNorm",
    }
)
POOLER = modules({"head.hidden": "pooler.dense"})
LM_TIED = ("cls.predictions.decoder.weight",)
IGNORED_KEYS = {"bos_token_id": "an encoder writes no text", "eos_token_id": "an encoder writes no text"}
ORIGINAL_KEYS = {
    "directionality": "an encoder is always bidirectional",
    **dict.fromkeys(
        ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        "of the original code, for a pooler that was not published",
    ),
}  # keys in the files of the Chinese and multilingual models
IGNORED_WEIGHTS = (Ignored("embeddings.position_ids", "a table of 0, 1, 2 …"),)
KEYS = {
    "vocab_size": Key("vocab", 30522),
    "hidden_size": Key("width", 768),
    "num_hidden_layers": Key("encoder.layers", 12),
    "num_attention_heads": Key("encoder.attention.heads", 12),
    "intermediate_size": Key("encoder.ffn.hidden", 3072),
    "hidden_act": Key("encoder.ffn.activation", "gelu"),
    "hidden_dropout_prob": Key("encoder.dropout", 0.1),
    "attention_probs_dropout_prob": Key("encoder.attention.dropout", 0.1),
    "classifier_dropout": Key(None, None),
    "max_position_embeddings": Key("embed.position.length", 512),
    "type_vocab_size": Key("embed.segments", 2),
    "layer_norm_eps": Key("norm.eps", 1e-12),
    "initializer_range": Key("init.std", 0.02),
    "pad_token_id": Key("tokens.pad", 0),
    "tie_word_embeddings": Key("head.tied", True),
}
BERT = Lineage(
    name="bert",
    paper=Paper(
        "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
        "Devlin et al.",
        2018,
        "arxiv.org/abs/1810.04805",
    ),
    model_type="bert",
    prefix="bert.",
    read=read,
    write=write,
    weight_rules=BODY_RULES,
    ignored_weights=IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat("BertForMaskedLM", lm, lm_rules("head"), tied=LM_TIED),
        "pool": HeadFormat("BertModel", lambda _: POOL, body_rules=POOLER, prefix=""),
        "none": HeadFormat("BertModel", lambda _: None, prefix=""),
        "pretraining": HeadFormat(
            "BertForPreTraining",
            lambda c: PretrainingHead(lm=lm(c), pair=PAIR),
            (*lm_rules("head.lm"), *modules({"head.pair.out": "cls.seq_relationship"})),
            modules({"head.pair.hidden": "pooler.dense"}),
            LM_TIED,
        ),
        "pair": HeadFormat(
            "BertForNextSentencePrediction", lambda _: PAIR, modules({"head.out": "cls.seq_relationship"}), POOLER
        ),
        "classify": HeadFormat("BertForSequenceClassification", classify, modules({"head.out": "classifier"}), POOLER),
        **token_heads("Bert"),
    },
    keys=KEYS,
    ignored_keys={**IGNORED_KEYS, **ORIGINAL_KEYS},
    sizes={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-base-chinese": {"vocab_size": 21128},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-base-multilingual-uncased": {"vocab_size": 105879},
        "bert-large-uncased": LARGE,
        "bert-large-uncased-whole-word-masking": LARGE,
        "bert-large-cased": {**LARGE, "vocab_size": 28996},
        "bert-large-cased-whole-word-masking": {**LARGE, "vocab_size": 28996},
        "bert-tiny": size(2, 128),
        "bert-mini": size(4, 256),
        "bert-small": size(4, 512),
        "bert-medium": size(8, 512),
        **{
            f"bert_uncased_L-{layers}_H-{width}_A-{width // 64}": size(layers, width)
            for layers in (2, 4, 6, 8, 10, 12)
            for width in (128, 256, 512, 768)
        },
    },
)
