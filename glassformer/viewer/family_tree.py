"""The family tree of lineages: the parent of each, what it changed, and a result that its paper reports.

Names, papers and facts are in ``glassformer.families``; this module holds what cannot be read there. ``changed`` is
from the paper that the lineage names or from the published models, ``reported`` from its abstract or introduction
unless it says otherwise. Each is in English and in Chinese.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bilingual:
    """A sentence in both languages of the page."""

    en: str
    zh: str


@dataclass(frozen=True)
class Branch:
    """Where a lineage stands in the tree."""

    title: str
    parent: str | None  # the lineage whose architecture or training it changes
    changed: Bilingual
    reported: Bilingual | None = None
    since: int | None = None  # the year of the first model, if the paper that the lineage names is of a later one


TREE: dict[str, Branch] = {
    "transformer2017": Branch(
        "Transformer",
        None,
        Bilingual(
            "Attention alone, without recurrence or convolution: an encoder and a decoder.",
            "只用注意力，不用循环也不用卷积：一个编码器和一个解码器。",
        ),
        Bilingual("28.4 BLEU on WMT 2014 English to German.", "WMT 2014 英德翻译 28.4 BLEU。"),
    ),
    "gpt": Branch(
        "GPT",
        "transformer2017",
        Bilingual(
            "The decoder alone, trained to predict the next word, then fine-tuned for each task.",
            "只保留解码器，先训练预测下一个词，再针对每个任务微调。",
        ),
        Bilingual("Best known result on 9 of 12 tasks.", "12 个任务中 9 个达到当时最好成绩。"),
    ),
    "bert": Branch(
        "BERT",
        "transformer2017",
        Bilingual(
            "The encoder alone, looking both ways; it fills masked words and tells whether two sentences follow "
            "each other.",
            "只保留编码器，双向注意；预测被遮盖的词，并判断两个句子是否相连。",
        ),
        Bilingual("GLUE score 80.5, 7.7 points above the best before.", "GLUE 得分 80.5，比此前最好成绩高 7.7 分。"),
    ),
    "gpt2": Branch(
        "GPT-2",
        "gpt",
        Bilingual(
            "Norms before the sublayers and one at the end; larger, and used without fine-tuning.",
            "归一化移到子层之前，最后再加一个；规模更大，不微调直接使用。",
        ),
        Bilingual(
            "Best known result on 7 of 8 language-modelling data sets without training on them.",
            "8 个语言建模数据集中，7 个在未经训练的情况下达到当时最好成绩。",
        ),
    ),
    "xlm": Branch(
        "XLM",
        "bert",
        Bilingual(
            "Many languages with an embedding for each; words are also masked in a text beside its translation.",
            "多种语言，各有自己的嵌入；还在一段文本和它的译文中同时遮盖词。",
        ),
        Bilingual("XNLI accuracy 4.9 points above the best before.", "XNLI 准确率比此前最好成绩高 4.9 个百分点。"),
    ),
    "roberta": Branch(
        "RoBERTa",
        "bert",
        Bilingual(
            "No sentence pairs, words masked anew each time, longer training on more text in larger batches.",
            "去掉句对任务，每次重新遮盖词，用更多文本、更大批次训练更久。",
        ),
        Bilingual("BERT was significantly undertrained.", "BERT 的训练明显不足。"),
    ),
    "xlm-roberta": Branch(
        "XLM-RoBERTa",
        "roberta",
        Bilingual(
            "RoBERTa for 100 languages: a vocabulary of 250,000 pieces, no parallel text, no language embeddings.",
            "面向 100 种语言的 RoBERTa：25 万个词元的词表，不用平行语料，不用语言嵌入。",
        ),
        Bilingual("More than 2 TB of filtered text.", "训练文本超过 2 TB（经过滤）。"),
    ),
    "distilbert": Branch(
        "DistilBERT",
        "bert",
        Bilingual(
            "Half the layers and no segments; it learns from BERT's output distributions and hidden states.",
            "层数减半，没有片段嵌入；从 BERT 的输出分布和隐藏状态学习（蒸馏）。",
        ),
        Bilingual(
            "Keeps 97 % of BERT's language understanding, 40 % smaller and 60 % faster.",
            "保留 BERT 97 % 的语言理解能力，体积小 40 %，速度快 60 %。",
        ),
    ),
    "albert": Branch(
        "ALBERT",
        "bert",
        Bilingual(
            "All layers share one set of weights, embeddings are factorised, and the pair task asks for the order "
            "of two sentences.",
            "所有层共享同一组权重，嵌入分解为两个矩阵，句对任务改为判断两句的先后。",
        ),
        Bilingual(
            "A configuration like BERT-large has 18 times fewer parameters.",
            "与 BERT-large 相当的配置，参数只有其十八分之一。",
        ),
    ),
    "electra": Branch(
        "ELECTRA",
        "bert",
        Bilingual(
            "A small generator replaces words; the model finds, for every token, whether it was replaced.",
            "一个小生成器替换部分词；模型对每个词元判断它是否被替换过。",
        ),
        Bilingual(
            "Comparable to RoBERTa and XLNet with less than a quarter of their compute.",
            "用不到 RoBERTa 和 XLNet 四分之一的算力达到相当的成绩。",
        ),
    ),
    "deberta": Branch(
        "DeBERTa",
        "bert",
        Bilingual(
            "Content and relative position have separate vectors in attention; absolute positions enter only where "
            "masked words are predicted.",
            "注意力中内容与相对位置各有向量；绝对位置只在预测被遮盖的词时加入。",
        ),
        Bilingual("SuperGLUE 89.9, people 89.8.", "SuperGLUE 89.9 分，人类 89.8 分。"),
    ),
    "deberta_v2": Branch(
        "DeBERTa v2/v3",
        "deberta",
        Bilingual(
            "Distances in logarithmic buckets, shared projections; v3 trains like ELECTRA.",
            "距离按对数分桶，投影共享；v3 采用 ELECTRA 的训练方式。",
        ),
        Bilingual("v3 large: GLUE average 91.37.", "v3 large：GLUE 平均 91.37。"),
    ),
    "mpnet": Branch(
        "MPNet",
        "bert",
        Bilingual(
            "Words are predicted in a permuted order while all positions are seen; relative buckets bias the scores.",
            "按打乱的次序预测词，同时看得到所有位置；分数加上相对位置分桶的偏置。",
        ),
    ),
    "bigbird": Branch(
        "BigBird",
        "roberta",
        Bilingual(
            "Block-sparse attention: a window, global blocks and random blocks; cost linear in the length.",
            "块稀疏注意力：窗口、全局块和随机块；开销随长度线性增长。",
        ),
        Bilingual(
            "Sequences up to 8 times longer on similar hardware.",
            "在相近的硬件上，可处理长达 8 倍的序列。",
        ),
    ),
    "ctrl": Branch(
        "CTRL",
        "gpt2",
        Bilingual(
            "A control code before the text chooses style and content.",
            "文本前的控制码决定风格与内容。",
        ),
        Bilingual("1.63 billion parameters.", "16.3 亿参数。"),
    ),
    "gpt3": Branch(
        "GPT-3",
        "gpt2",
        Bilingual(
            "Over 100 times larger; dense and banded attention alternate; tasks are shown by examples in the prompt.",
            "规模大 100 多倍；稠密与带状注意力交替；任务通过提示中的例子给出。",
        ),
        Bilingual("175 billion parameters.", "1750 亿参数。"),
    ),
    "gpt-neo": Branch(
        "GPT-Neo",
        "gpt3",
        Bilingual(
            "An open counterpart of GPT-3: local and global attention alternate, scores are not scaled.",
            "GPT-3 的开放版本：局部与全局注意力交替，分数不缩放。",
        ),
    ),
    "gpt-j": Branch(
        "GPT-J",
        "gpt-neo",
        Bilingual(
            "Attention and feed-forward run in parallel on the same input; a quarter of each head rotates with the "
            "position; attention is full and scaled again.",
            "注意力与前馈网络并行读取同一输入；每个头四分之一的维度随位置旋转；注意力恢复为完整的、带缩放的。",
        ),
    ),
    "gpt-neox": Branch(
        "GPT-NeoX",
        "gpt-j",
        Bilingual(
            "Each of the parallel sublayers has its own norm; attention has biases again.",
            "并行的两个子层各有自己的归一化；注意力重新带有偏置。",
        ),
        Bilingual("20 billion parameters, with open weights.", "200 亿参数，权重开放。"),
    ),
    "opt": Branch(
        "OPT",
        "gpt3",
        Bilingual("An open counterpart of GPT-3, with ReLU.", "GPT-3 的开放版本，使用 ReLU。"),
        Bilingual(
            "OPT-175B is comparable to GPT-3 at a seventh of the carbon footprint.",
            "OPT-175B 与 GPT-3 相当，研制的碳排放只有其七分之一。",
        ),
    ),
    "bloom": Branch(
        "BLOOM",
        "gpt2",
        Bilingual(
            "No position vectors: scores fall with distance (ALiBi); a norm after the embedding.",
            "没有位置向量：分数随距离减小（ALiBi）；嵌入之后加归一化。",
        ),
        Bilingual(
            "176 billion parameters, 46 natural and 13 programming languages.",
            "1760 亿参数，46 种自然语言和 13 种编程语言。",
        ),
    ),
    "llama": Branch(
        "Llama",
        "gpt3",
        Bilingual(
            "RMSNorm, gated SiLU, rotary positions, no biases; from Llama 2 70B on, heads share keys and values.",
            "RMSNorm、门控 SiLU、旋转位置编码、无偏置；自 Llama 2 70B 起，多个头共用键和值。",
        ),
        Bilingual(
            "Llama 3: 405 billion parameters, 128,000 tokens of context.", "Llama 3：4050 亿参数，12.8 万词元上下文。"
        ),
        since=2023,  # Touvron et al., arxiv.org/abs/2302.13971
    ),
    "mistral": Branch(
        "Mistral",
        "llama",
        Bilingual(
            "Grouped keys and values at 7 billion parameters, and attention within a sliding window.",
            "70 亿参数即采用分组的键和值，注意力限制在滑动窗口内。",
        ),
        Bilingual(
            "Better than Llama 2 13B on all evaluated benchmarks.",
            "在所有评测基准上优于 Llama 2 13B。",
        ),
    ),
    "qwen2": Branch(
        "Qwen 2.5",
        "llama",
        Bilingual("Biases on queries, keys and values.", "查询、键、值的投影带偏置。"),
        Bilingual("18 trillion tokens of training text.", "训练文本 18 万亿词元。"),
    ),
    "qwen3": Branch(
        "Qwen 3",
        "qwen2",
        Bilingual(
            "No biases; instead, queries and keys of each head are normalised.",
            "去掉偏置，改为对每个头的查询和键做归一化。",
        ),
        Bilingual("119 languages and dialects.", "119 种语言和方言。"),
    ),
    "gemma": Branch(
        "Gemma",
        "llama",
        Bilingual(
            "Gated GELU, embeddings scaled by √width, a vocabulary of 256,000; in the smaller model all heads share "
            "one key and value head.",
            "门控 GELU，嵌入乘以 √宽度，25.6 万词元的词表；较小的模型所有头共用一个键值头。",
        ),
        Bilingual(
            "Better than open models of similar size on 11 of 18 text tasks.",
            "18 个文本任务中，11 个优于规模相近的开放模型。",
        ),
    ),
    "cs336": Branch(
        "CS336 LM",
        "llama",
        Bilingual(
            "The course's language model, built from its parts: RMSNorm, SwiGLU, RoPE, no biases.",
            "课程中从零搭建的语言模型：RMSNorm、SwiGLU、RoPE、无偏置。",
        ),
    ),
    "t5": Branch(
        "T5",
        "transformer2017",
        Bilingual(
            "Every task as text to text; RMSNorm before the sublayers, no biases, relative buckets, unscaled scores.",
            "所有任务都写成文本到文本；归一化（RMSNorm）在子层之前，无偏置，相对位置分桶，分数不缩放。",
        ),
        Bilingual(
            "11 billion parameters; state of the art on many benchmarks.", "110 亿参数；多项基准达到当时最好成绩。"
        ),
    ),
    "bart": Branch(
        "BART",
        "transformer2017",
        Bilingual(
            "The decoder restores a text in which spans were masked and sentences shuffled.",
            "解码器还原片段被遮盖、句子被打乱的文本。",
        ),
        Bilingual(
            "Matches RoBERTa on GLUE and SQuAD with comparable training resources.",
            "训练资源相当时，在 GLUE 和 SQuAD 上与 RoBERTa 持平。",
        ),
    ),
    "m2m100": Branch(
        "M2M-100",
        "transformer2017",
        Bilingual(
            "Translates directly between any two of 100 languages; a token names the language.",
            "在 100 种语言中任意两种之间直接翻译；用一个词元指明语言。",
        ),
        Bilingual(
            "More than 10 BLEU above English-centric models between other languages.",
            "在非英语方向上，比以英语为中心的模型高 10 BLEU 以上。",
        ),
    ),
    "bigbird-pegasus": Branch(
        "BigBird-Pegasus",
        "bigbird",
        Bilingual(
            "BigBird's attention in the encoder of a summariser; the decoder's attention is full.",
            "把 BigBird 的注意力用于摘要模型的编码器；解码器仍用完整注意力。",
        ),
    ),
}
