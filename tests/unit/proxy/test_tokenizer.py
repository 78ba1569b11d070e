"""Texts and chats to ids: special tokens once, templates as transformers renders them."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers, processors

from proxy.model import ServedModel
from proxy.text.chat_template import ChatTemplate, ChatTemplateError
from proxy.text.tokenizer import NoChatTemplate, Tokenizer

HELLO = [{"role": "user", "content": "hello"}]


def render(source: str, **special_tokens: str) -> str:
    return ChatTemplate(source, special_tokens).render(HELLO)


def start_token_tokenizer(chat_template: ChatTemplate | None) -> Tokenizer:
    """As Llama's: a start token is put before every text."""
    library = Library(models.BPE(vocab={"<s>": 0, "a": 1, "b": 2}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<s>"])
    library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Tokenizer(library, chat_template)


def test_a_text_gets_the_start_token_and_a_chat_whose_template_writes_it_gets_no_second() -> None:
    template = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    tokenizer = start_token_tokenizer(template)
    assert tokenizer.encode("ab") == [0, 1, 2]
    assert tokenizer.encode_rendered(tokenizer.render_chat([{"role": "user", "content": "ab"}])) == [0, 1, 2]


def test_a_model_without_a_template_refuses_chats() -> None:
    with pytest.raises(NoChatTemplate, match="no chat template"):
        start_token_tokenizer(None).render_chat(HELLO)


def test_blocks_are_trimmed_as_transformers_does() -> None:
    assert render("  {% for m in messages %}\n{{ m.content }}\n  {% endfor %}\n|") == "hello\n|"


def test_templates_may_use_what_transformers_offers() -> None:
    assert render("{{ messages[0] | tojson }}") == '{"role": "user", "content": "hello"}'
    assert render("{{ {'a': '<é>'} | tojson(indent=1) }}") == '{\n "a": "<é>"\n}'
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hello!"
    assert render("{{ eos_token }}|{{ bos_token }}", eos_token="</s>") == "</s>|"
    assert render("{{ tools is none }}{{ add_generation_prompt }}") == "TrueTrue"


def test_a_template_that_refuses_the_messages_says_why() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(ChatTemplateError):
        render("{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(ChatTemplateError):
        render("{{ messages.append(1) }}")


def test_a_template_file_goes_before_the_configuration_and_a_list_of_templates_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ eos_token }}"}]
    config = {"chat_template": named, "eos_token": {"content": "</s>", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "D</s>"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    template = ChatTemplate.load(tmp_path)
    assert template is not None
    assert template.render(HELLO) == "from the file"


def test_the_model_knows_its_limits_and_its_end_of_text(model_folder: Path, tmp_path: Path) -> None:
    model = ServedModel.load(model_folder, "bytes")
    assert (model.max_model_len, model.vocab_size, model.eos_token_ids) == (512, 257, frozenset([256]))
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ServedModel.load(tmp_path, "nothing")
