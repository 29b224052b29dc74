"""BERT: a post-norm encoder trained to guess masked words and to tell whether two sentences follow each other."""

from glassformer.config import (
    Attention,
    Embed,
    FeedForward,
    InputPosition,
    LMHead,
    Model,
    Norm,
    PretrainingHead,
    Stack,
    TaskHead,
    Tokens,
)
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, Reader, span
from glassformer.weights.rules import Ignored, Rule, modules, same


def read(c: Reader) -> Model:
    """The facts that config.json states."""
    c.must("position_embedding_type", "absolute", "relative positions of this kind were never published in a model")
    c.must("is_decoder", False, "an encoder run as a decoder is another architecture")
    c.must("add_cross_attention", False, "an encoder has nothing to attend to but itself")
    width, heads = c.hidden_size, c.num_attention_heads
    return Model(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(
            segments=c.type_vocab_size,
            position=InputPosition(kind="learned", length=c.max_position_embeddings),
            norm=True,
            dropout=c.hidden_dropout_prob,
        ),
        encoder=Stack(
            layers=c.num_hidden_layers,
            attention=Attention(heads=heads, head_dim=width // heads, dropout=c.attention_probs_dropout_prob),
            ffn=FeedForward(hidden=c.intermediate_size, activation=c.activation("hidden_act")),
            placement="post",
            final_norm=False,
            dropout=c.hidden_dropout_prob,
        ),
        tokens=Tokens(pad=c.pad_token_id),
    )


def lm(c: Reader) -> LMHead:
    """The head that guesses masked words."""
    return LMHead(transform=c.activation("hidden_act"), bias=True, tied=c.tie_word_embeddings)


def dropout(c: Reader) -> float:
    """Before the scores of a task head."""
    return c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout


LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
PAIR = TaskHead(task="pair", labels=("next", "random"), pool="first", hidden="tanh")
BODY = modules(
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
IGNORED_WEIGHTS = (Ignored("embeddings.position_ids", "a table of 0, 1, 2 …"),)


def lm_weights(head: str) -> tuple[Rule, ...]:
    """Weights of the masked-word head where ours is called ``head``."""
    return (
        *modules({f"{head}.transform": "cls.predictions.transform.dense"}),
        *modules({f"{head}.norm": "cls.predictions.transform.LayerNorm"}),
        same(f"{head}.out.weight", "cls.predictions.decoder.weight"),
        same(f"{head}.bias", "cls.predictions.bias", "cls.predictions.decoder.bias"),
    )


BERT = Lineage(
    name="bert",
    paper=Paper(
        "BERT: Pre-training of Deep Bidirectional Transformers", "Devlin et al.", 2018, "arxiv.org/abs/1810.04805"
    ),
    model_type="bert",
    prefix="bert.",
    read=read,
    weights=BODY,
    ignored_weights=IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat("BertForMaskedLM", lm, lm_weights("head"), tied=LM_TIED),
        "pool": HeadFormat(
            "BertModel",
            lambda _: TaskHead(task="pool", pool="first", hidden="tanh"),
            inner=POOLER,
            prefix="",
        ),
        "pretraining": HeadFormat(
            "BertForPreTraining",
            lambda c: PretrainingHead(lm=lm(c), pair=PAIR),
            (*lm_weights("head.lm"), *modules({"head.pair.out": "cls.seq_relationship"})),
            modules({"head.pair.hidden": "pooler.dense"}),
            LM_TIED,
        ),
        "pair": HeadFormat(
            "BertForNextSentencePrediction",
            lambda _: PAIR,
            modules({"head.out": "cls.seq_relationship"}),
            POOLER,
        ),
        "classify": HeadFormat(
            "BertForSequenceClassification",
            lambda c: TaskHead(task="classify", labels=c.labels, pool="first", hidden="tanh", dropout=dropout(c)),
            modules({"head.out": "classifier"}),
            POOLER,
        ),
        "tag": HeadFormat(
            "BertForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=dropout(c)),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat(
            "BertForQuestionAnswering",
            span,
            modules({"head.out": "qa_outputs"}),
        ),
    },
    keys={
        "vocab_size": Key("vocab", 30522),
        "hidden_size": Key("width", 768),
        "num_hidden_layers": Key("encoder.layers", 12),
        "num_attention_heads": Key("encoder.attention.heads", 12),
        "intermediate_size": Key("encoder.ffn.hidden", 3072),
        "hidden_act": Key("encoder.ffn.activation", "gelu"),
        "hidden_dropout_prob": Key("encoder.dropout", 0.1),
        "attention_probs_dropout_prob": Key("encoder.attention.dropout", 0.1),
        "classifier_dropout": Key("head.dropout", None),
        "max_position_embeddings": Key("embed.position.length", 512),
        "type_vocab_size": Key("embed.segments", 2),
        "layer_norm_eps": Key("norm.eps", 1e-12),
        "pad_token_id": Key("tokens.pad", 0),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored={"bos_token_id": "an encoder writes no text", "eos_token_id": "an encoder writes no text"},
    sizes={
        "bert-base-uncased": {},
        "bert-base-cased": {"vocab_size": 28996},
        "bert-base-multilingual-cased": {"vocab_size": 119547},
        "bert-large-uncased": dict(LARGE),
        "bert-large-cased": {**LARGE, "vocab_size": 28996},
    },
    tokenizer="wordpiece",
)
