"""Chat templates: the same text as transformers, and nothing that a template may not do."""

import sys

import pytest

pytest.importorskip("jinja2", reason="chat templates need Jinja")

import tokenizers
from tokenizers import models

from glassformer.text import chat
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from glassformer.text.vocabularies import Vocabulary

CHAT_ML = """{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
LLAMA = """{{ bos_token }}{% set ns = namespace(found=false) %}{% for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
{%- if m.role == 'user' %}{{ '[INST] ' + m.content | trim + ' [/INST]' }}{% set ns.found = true %}
{%- else %}{% generation %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endgeneration %}{% endif %}
{%- endfor %}{% if ns.found %}!{% endif %}"""
TOOLS = """{% if tools is not none %}{{ tools | tojson(indent=2) }}{% endif %}{% if documents %}docs{% endif %}
{% for m in messages %}{% if m.content == 'skip' %}{% continue %}{% endif %}{{ m | tojson }}{% endfor %}
{{ pad_token }}"""
MESSAGES = [
    {"role": "user", "content": "  <b>Héllo</b> & 'you' 😀 \n"},
    {"role": "assistant", "content": "skip"},
    {"role": "user", "content": "日本語"},
]


@pytest.mark.parametrize("template", [CHAT_ML, LLAMA, TOOLS], ids=["chatml", "llama", "tools"])
@pytest.mark.parametrize("prompt", [True, False])
def test_it_renders_what_transformers_renders(template, prompt) -> None:
    from transformers import PreTrainedTokenizerFast

    special = {"bos_token": "<s>", "eos_token": "</s>"}
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1}, []))
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"<x>": ["é"]}}}]
    for own_tools in (None, tools):
        expected = theirs.apply_chat_template(MESSAGES, tools=own_tools, tokenize=False, add_generation_prompt=prompt)
        rendered = chat.render(template, MESSAGES, add_generation_prompt=prompt, tools=own_tools, **special)
        assert rendered == expected
    assert expected


def test_the_date_is_there() -> None:
    assert len(chat.render("{{ strftime_now('%Y-%m-%d') }}", [])) == 10


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ (messages | map(attribute='__class__') | list)[0].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% set _ = messages.append('x') %}",
        "{% set _ = messages[0].update(role='system') %}",
        "{% set _ = messages.clear() %}",
        "{% import 'os' as os %}",
        "{% include '/etc/hostname' %}",
        "{{ 1 / 0 }}",
        "{{ messages['no'].such.thing }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{% for %}",
    ],
)
def test_hostile_and_broken_templates_are_refused(template) -> None:
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(ValueError, match="the chat template failed"):
        chat.render(template, messages)
    assert messages == [{"role": "user", "content": "x"}]


@pytest.mark.parametrize("inside", ["messages.__class__", "raise_exception.__globals__", "messages[0].__init__"])
def test_the_inside_of_objects_is_not_there(inside) -> None:
    assert chat.render("{{ " + inside + " }}", [{"role": "user", "content": "x"}]) == ""
    with pytest.raises(ValueError, match="SecurityError"):
        chat.render("{{ " + inside + ".__mro__ }}", [{"role": "user", "content": "x"}])


def test_a_template_says_why_it_refuses() -> None:
    with pytest.raises(ValueError, match="the chat template failed: TemplateError: roles must alternate"):
        chat.render(LLAMA, [{"role": "assistant", "content": "x"}])
    with pytest.raises(ValueError, match="in line 2"):
        chat.render("\n{% for %}", [])


def test_only_plain_data_reaches_a_template() -> None:
    with pytest.raises(ValueError, match="must be plain data"):
        chat.render("", [{"role": "user", "content": object()}])


def test_without_jinja_the_error_says_what_to_install(monkeypatch) -> None:
    chat._jinja.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"pip install 'glassformer\[chat\]'"):
        chat.render("", [])


def test_a_tokenizer_renders_with_its_own_template() -> None:
    vocab = {token: i for i, token in enumerate(["<s>", "</s>", *"abuser:\n "])}
    backend = tokenizers.Tokenizer(models.BPE(vocab, []))
    backend.add_special_tokens(["<s>", "</s>"])
    special = {"bos": "<s>", "eos": "</s>"}
    template = "{{ bos_token }}{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}"
    ours = Tokenizer(Vocabulary(backend, special, template))
    ids = ours.chat([{"role": "user", "content": "ab"}])
    assert ours.tokens(ids) == ["<s>", *"user:ab", "</s>"]
    ours.chat_template = None
    with pytest.raises(TokenizerError, match="has no chat template"):
        ours.chat([])
