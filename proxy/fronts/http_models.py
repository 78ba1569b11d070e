"""OpenAI's `/v1/models`: the one model that is served."""

from __future__ import annotations

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from proxy.errors import ApiError
from proxy.fronts.http_generation import error_response
from proxy.service import GenerationService


class HttpModels:
    def __init__(self, service: GenerationService) -> None:
        self._service = service

    async def models(self) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def model(self, name: str) -> Response:
        try:
            self._service.check_model(name)
        except ApiError as error:
            return error_response(error)
        return JSONResponse(self._model_object())

    def _model_object(self) -> dict[str, Any]:
        model = self._service.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "pdserve",
            "max_model_len": self._service.max_model_len,
        }
