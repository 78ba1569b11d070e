"""What a model weighs: parameters, bytes of KV for a token, and the operations a token costs, by its shape.

A matrix of n parameters costs 2n operations a token; attention 4 for each head dimension and token that is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.model_config import ModelConfig

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelSize:
    layer_parameters: int  # of all layers together
    head_parameters: int  # the matrix that makes logits of the last hidden state
    parameters: int  # all that are kept: the head once where it is the embedding too
    attention_width: int  # layers × heads × head dimension
    kv_width: int  # numbers kept for one token: layers × 2 × KV heads × head dimension
    number_bytes: int
    max_model_len: int

    @classmethod
    def of(cls, model: ModelConfig, dtype: str) -> ModelSize:
        """`dtype`: a key of DTYPE_BYTES, of weights and KV."""
        layers = model.num_layers * _layer_parameters(model)
        embedding = model.vocab_size * model.hidden_size
        kept = embedding if model.tie_embeddings else 2 * embedding
        return cls(
            layer_parameters=layers,
            head_parameters=embedding,
            parameters=layers + kept + model.hidden_size,
            attention_width=model.num_layers * model.num_heads * model.head_dim,
            kv_width=model.num_layers * 2 * model.num_kv_heads * model.head_dim,
            number_bytes=DTYPE_BYTES[dtype],
            max_model_len=model.max_model_len,
        )

    @property
    def weight_bytes(self) -> int:
        return self.parameters * self.number_bytes

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self.kv_width * self.number_bytes

    def prompt_operations(self, num_tokens: int, num_cached: int = 0) -> int:
        """Of a prompt whose first `num_cached` tokens are there; each token looks at all before it."""
        computed = num_tokens - num_cached
        looked_at = (num_tokens * (num_tokens + 1) - num_cached * (num_cached + 1)) // 2
        return computed * 2 * self.layer_parameters + 4 * self.attention_width * looked_at + 2 * self.head_parameters

    def token_operations(self, context: int) -> int:
        """Of one generated token after so many others."""
        return 2 * (self.layer_parameters + self.head_parameters) + 4 * self.attention_width * context

    def step_bytes(self, num_requests: int, context: int) -> int:
        """Read from memory by a step that gives each request a token: the weights once, the KV of each."""
        weights = (self.layer_parameters + self.head_parameters) * self.number_bytes
        return weights + num_requests * context * self.kv_bytes


def _layer_parameters(model: ModelConfig) -> int:
    hidden = model.hidden_size
    query, key_value = model.num_heads * model.head_dim, 2 * model.num_kv_heads * model.head_dim
    attention = hidden * (query + key_value) + query * hidden
    biases = (query + key_value) * model.qkv_bias + hidden * model.output_bias
    norms = 2 * hidden + 2 * model.head_dim * model.qk_norm
    return attention + biases + norms + 3 * hidden * model.intermediate_size
