"""BERT: a post-norm encoder trained to guess masked words and to tell whether two sentences follow each other."""

from typing import Any

from glassformer.config import Attention, Embed, FeedForward, Init, InputPosition, Model, Norm, Stack, Tokens, look
from glassformer.config.heads import LMHead, PretrainingHead, TaskHead
from glassformer.weights.lineage import HeadFormat, Key, Lineage, Paper, span
from glassformer.weights.reader import Reader
from glassformer.weights.rules import Ignored, Rule, modules, same


def read(c: Reader) -> Model:
    """The facts that config.json states."""
    c.must("position_embedding_type", "absolute", "relative positions of this kind were never published in a model")
    c.must("is_decoder", False, "an encoder run as a decoder is another architecture")
    c.must("add_cross_attention", False, "an encoder has nothing to attend to but itself")
    width, heads, dropout = c.hidden_size, c.num_attention_heads, c.hidden_dropout_prob
    place = InputPosition(kind="learned", length=c.max_position_embeddings)
    return Model(
        vocab=c.vocab_size,
        width=width,
        norm=Norm(eps=c.layer_norm_eps),
        embed=Embed(segments=c.type_vocab_size, position=place, norm=True, dropout=dropout),
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


def lm(c: Reader) -> LMHead:
    """The head that guesses masked words."""
    return LMHead(transform=c.activation("hidden_act"), bias=True, tied=c.tie_word_embeddings)


def dropout(c: Reader) -> float:
    """Before the scores of a task head."""
    return c.hidden_dropout_prob if c.classifier_dropout is None else c.classifier_dropout


def classify(c: Reader) -> TaskHead:
    """Scores from the pooled first token."""
    return TaskHead(task="classify", labels=c.labels, pool="first", hidden="tanh", dropout=dropout(c))


def write(model: Model) -> dict[str, Any]:
    """What is said of heads: a head without dropout of its own must not set it for the next one."""
    head = model.head
    if isinstance(head, PretrainingHead):
        return {"tie_word_embeddings": head.lm.tied}
    scores = isinstance(head, TaskHead) and head.task in ("classify", "tag")
    return {"classifier_dropout": look(head, "dropout")} if scores else {}


def lm_weights(head: str, at: str = "cls.predictions", inside: str = ".transform") -> tuple[Rule, ...]:
    """Weights of the masked-word head where ours is called ``head`` and theirs stands ``at`` a name."""
    return (
        *modules({f"{head}.transform": f"{at}{inside}.dense", f"{head}.norm": f"{at}{inside}.LayerNorm"}),
        same(f"{head}.out.weight", f"{at}.decoder.weight"),
        same(f"{head}.bias", f"{at}.bias", f"{at}.decoder.bias"),
    )


def token_heads(name: str) -> dict[str, HeadFormat]:
    """The heads that answer for every token, which the descendants share."""
    return {
        "tag": HeadFormat(
            f"{name}ForTokenClassification",
            lambda c: TaskHead(task="tag", labels=c.labels, dropout=dropout(c)),
            modules({"head.out": "classifier"}),
        ),
        "span": HeadFormat(f"{name}ForQuestionAnswering", span, modules({"head.out": "qa_outputs"})),
    }


def size(layers: int, width: int) -> dict[str, int]:
    """The usual proportions: heads of 64, and four times the width inside."""
    shape = {"num_hidden_layers": layers, "hidden_size": width}
    return {**shape, "num_attention_heads": width // 64, "intermediate_size": 4 * width}


LARGE = size(24, 1024)
POOL = TaskHead(task="pool", pool="first", hidden="tanh")
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
IGNORED = {"bos_token_id": "an encoder writes no text", "eos_token_id": "an encoder writes no text"}
MAKERS = {
    "directionality": "an encoder always looks both ways",
    **dict.fromkeys(
        ("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type"),
        "of the makers' own code, for a pooler that was not published",
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
        "BERT: Pre-training of Deep Bidirectional Transformers", "Devlin et al.", 2018, "arxiv.org/abs/1810.04805"
    ),
    model_type="bert",
    prefix="bert.",
    read=read,
    write=write,
    weights=BODY,
    ignored_weights=IGNORED_WEIGHTS,
    heads={
        "lm": HeadFormat("BertForMaskedLM", lm, lm_weights("head"), tied=LM_TIED),
        "pool": HeadFormat("BertModel", lambda _: POOL, inner=POOLER, prefix=""),
        "none": HeadFormat("BertModel", lambda _: None, prefix=""),
        "pretraining": HeadFormat(
            "BertForPreTraining",
            lambda c: PretrainingHead(lm=lm(c), pair=PAIR),
            (*lm_weights("head.lm"), *modules({"head.pair.out": "cls.seq_relationship"})),
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
    ignored={**IGNORED, **MAKERS},
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
