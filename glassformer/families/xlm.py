"""XLM: one model for many languages, with language embeddings; trained with masked or causal language modelling."""

from typing import Any

from glassformer.config import (
    Attention,
    Embed,
    FeedForward,
    Init,
    InputPosition,
    LMHead,
    ModelConfig,
    Norm,
    Stack,
    TaskHead,
    Tokens,
)
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span_head
from glassformer.weights.reader import ConfigReader
from glassformer.weights.rules import Ignored, modules, same


def either(c: ConfigReader, key: str, old: str) -> Any:
    """Return the value of a key that had another name in older files."""
    return getattr(c, old) if c.has(old) and not c.has(key) else getattr(c, key)


def read(c: ConfigReader) -> ModelConfig:
    """Return the facts of a config.json. Sinusoids, if used, are stored like a learned table."""
    c.require("is_encoder", True, "no published model attends to an encoder")
    c.require("asm", False, "no published model has an adaptive softmax")
    c.require("pruned_heads", {}, "layers with unequal heads cannot be built")
    width = c.emb_dim
    stack = Stack(
        layers=c.n_layers,
        causal=c.causal,
        attention=Attention(heads=c.n_heads, head_dim=c.per_head("emb_dim", "n_heads"), dropout=c.attention_dropout),
        ffn=FeedForward(hidden=4 * width, activation="gelu" if c.gelu_activation else "relu"),
        placement="post",
        final_norm=False,
        dropout=c.dropout,
    )
    return ModelConfig(
        vocab=either(c, "vocab_size", "n_words"),
        width=width,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(
            languages=c.n_langs if c.n_langs > 1 and c.use_lang_emb else 0,
            position=InputPosition(kind="learned", length=c.max_position_embeddings),
            norm=True,
            dropout=c.dropout,
        ),
        encoder=None if c.causal else stack,
        decoder=stack if c.causal else None,
        tokens=Tokens(
            bos=either(c, "bos_token_id", "bos_index"),
            eos=either(c, "eos_token_id", "eos_index"),
            pad=either(c, "pad_token_id", "pad_index"),
        ),
        init=Init(std=c.init_std, table_std=c.embed_init_std),
    )


def write(facts: ModelConfig) -> dict[str, Any]:
    """Return the keys of the model's single stack, encoder or decoder, and of the head."""
    stack, head = facts.encoder or facts.decoder, facts.head
    assert stack is not None
    config: dict[str, Any] = {
        "n_layers": stack.layers,
        "n_heads": stack.attention.heads,
        "dropout": stack.dropout,
        "attention_dropout": stack.attention.dropout,
        "gelu_activation": stack.ffn.activation == "gelu",
        "causal": stack.causal,
        "n_langs": facts.embed.languages or 1,
        "use_lang_emb": facts.embed.languages > 0,
    }
    if isinstance(head, TaskHead) and head.task == "classify":
        config |= {"summary_type": head.pool, "summary_first_dropout": head.dropout}
    return config


def classify(c: ConfigReader) -> TaskHead:
    """Build a head that classifies a text by its first or last token, or the mean."""
    c.require("summary_use_proj", True, "without a projection there are no logits")
    c.require("summary_proj_to_labels", True, "no published model has logits without labels")
    c.require("summary_activation", None, "logits are used as they are")
    return TaskHead(task="classify", labels=c.labels, pool=c.summary_type, dropout=c.summary_first_dropout)


PARTS = {
    "attention.q": "attentions.{i}.q_lin",
    "attention.k": "attentions.{i}.k_lin",
    "attention.v": "attentions.{i}.v_lin",
    "attention.o": "attentions.{i}.out_lin",
    "attention_norm": "layer_norm1.{i}",
    "ffn.up": "ffns.{i}.lin1",
    "ffn.down": "ffns.{i}.lin2",
    "ffn_norm": "layer_norm2.{i}",
}
PAIR = {"emb_dim": 1024, "n_layers": 6, "n_heads": 8, "n_langs": 2}
CAUSAL = {**PAIR, "causal": True}  # not in the published files, though these models predict the next word
XNLI = {"emb_dim": 1024, "n_heads": 8, "n_langs": 15, "vocab_size": 95000}
MANY = {"emb_dim": 1280, "n_layers": 16, "use_lang_emb": False, "vocab_size": 200000}
XLM = Lineage(
    name="xlm",
    paper=Paper("Cross-lingual Language Model Pretraining", "Lample and Conneau", 2019, "arxiv.org/abs/1901.07291"),
    model_type="xlm",
    prefix="transformer.",
    read=read,
    write=write,
    weight_rules=(
        *modules({"embed.position": "position_embeddings", "embed.language": "lang_embeddings"}),
        *modules({"embed.token": "embeddings", "embed.norm": "layer_norm_emb"}),
        *modules(
            {f"{stack}.blocks.{{i}}.{ours}": it for stack in ("encoder", "decoder") for ours, it in PARTS.items()}
        ),
    ),
    ignored_weights=(
        Ignored("position_ids", "a table of 0, 1, 2 …"),
        Ignored("lang_embeddings.weight", "this model has no language embeddings: use_lang_emb is false"),
    ),
    heads={
        "lm": HeadFormat(
            "XLMWithLMHeadModel",
            lambda c: LMHead(bias=True, tied=c.tie_word_embeddings),
            (same("head.out.weight", "pred_layer.proj.weight"), same("head.bias", "pred_layer.proj.bias")),
            tied=("pred_layer.proj.weight",),
        ),
        "none": HeadFormat("XLMModel", lambda _: None, prefix=""),
        "classify": HeadFormat(
            "XLMForSequenceClassification", classify, modules({"head.out": "sequence_summary.summary"})
        ),
        "tag": HeadFormat(
            "XLMForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=c.dropout),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat("XLMForQuestionAnsweringSimple", span_head, modules({"head.out": "qa_outputs"})),
    },
    keys={
        "vocab_size": Key("vocab", 30145),
        "emb_dim": Key("width", 2048),
        "n_layers": Key(None, 12),
        "n_heads": Key(None, 16),
        "dropout": Key(None, 0.1),
        "attention_dropout": Key(None, 0.1),
        "gelu_activation": Key(None, True),
        "causal": Key(None, False),
        "n_langs": Key(None, 1),
        "use_lang_emb": Key(None, True),
        "max_position_embeddings": Key("embed.position.length", 512),
        "layer_norm_eps": Key("norm.eps", 1e-12),
        "init_std": Key("init.std", 0.02),
        "embed_init_std": Key("init.table_std", 2048**-0.5),
        "summary_type": Key(None, "first"),
        "summary_first_dropout": Key(None, 0.1),
        "summary_use_proj": Key(None, True),
        "summary_proj_to_labels": Key(None, True),
        "summary_activation": Key(None, None),
        "bos_token_id": Key("tokens.bos", 0),
        "eos_token_id": Key("tokens.eos", 1),
        "pad_token_id": Key("tokens.pad", 2),
        "tie_word_embeddings": Key("head.tied", True),
    },
    ignored_keys={
        "sinusoidal_embeddings": "where the table of positions came from; it is stored either way",
        "lang_id": "an argument of each call",
        **dict.fromkeys(("id2lang", "lang2id"), "part of the tokenizer"),
        **dict.fromkeys(("unk_index", "mask_index"), "part of the tokenizer"),
        **dict.fromkeys(("start_n_top", "end_n_top"), "belong to a head that searches for spans, which is not read"),
        **dict.fromkeys(("max_vocab", "min_count"), "how the vocabulary was made"),
        "share_inout_emb": "another name of tie_word_embeddings",
        "same_enc_dec": "of models with a decoder besides, which are not read",
        "is_decoder": "the other library takes no note of it here",
    },
    sizes={
        "xlm-mlm-en-2048": {},
        "xlm-mlm-ende-1024": {**PAIR, "vocab_size": 64699},
        "xlm-mlm-enfr-1024": {**PAIR, "vocab_size": 64139},
        "xlm-mlm-enro-1024": {**PAIR, "vocab_size": 64592},
        "xlm-mlm-xnli15-1024": XNLI,
        "xlm-mlm-tlm-xnli15-1024": XNLI,
        "xlm-clm-enfr-1024": {**CAUSAL, "vocab_size": 64139},
        "xlm-clm-ende-1024": {**CAUSAL, "vocab_size": 64699},
        "xlm-mlm-17-1280": {**MANY, "n_langs": 17},
        "xlm-mlm-100-1280": {**MANY, "n_langs": 100},
    },
)
