"""A chat's functions in the format of the model that is served: how it is asked, held to it, and heard."""

from __future__ import annotations

from dataclasses import dataclass, replace

from proxy.errors import invalid
from proxy.model import ServedModel
from proxy.request.generation_request import GenerationRequest
from proxy.tools.tool import ToolUse
from proxy.tools.tool_call_format import ToolCallFormat
from proxy.tools.tool_call_parser import ToolCallParser


@dataclass(frozen=True, slots=True)
class ToolCalling:
    use: ToolUse
    form: ToolCallFormat

    @classmethod
    def of(cls, use: ToolUse, model: ServedModel) -> ToolCalling:
        """Raises ApiError for a model whose calls this server does not parse."""
        if model.tool_call_format is None:
            raise invalid(
                "tools",
                "this model's chat template writes calls in a format that this server does not parse; "
                "its operator can name one: proxy.tool_call_format",
                "unsupported_parameter",
            )
        return cls(use, model.tool_call_format)

    def parser(self) -> ToolCallParser:
        return ToolCallParser(self.form, self.use.names, is_forced=self.use.is_forced)

    def hold(self, request: GenerationRequest, model: ServedModel) -> GenerationRequest:
        """With the grammar of the calls, where one is needed; and with their markers in the text. Raises ApiError."""
        wanted = request.sampling.structured_output
        if wanted is not None:
            raise invalid(wanted.field, "not together with tools, unless tool_choice is none")
        grammar = self.use.structured_output(self.form, model.tokenizer.token_id)
        sampling = replace(request.sampling, structured_output=grammar)
        return replace(request, sampling=sampling, visible_tokens=self.form.markers)
