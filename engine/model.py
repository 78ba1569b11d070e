"""One decoder for the Llama family: Llama, Mistral, Qwen2 and Qwen3 differ in biases, norms of q and k, and head size.

Works on a flat batch: every token of every sequence is one row, and only attention knows where a sequence ends.
"""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor
from torch.nn import functional

from engine.attention import Attention, AttentionMetadata, write_kv
from engine.batch import LayerWatch
from engine.linear import Linear
from engine.model_config import ModelConfig
from engine.rope import RotaryEmbedding, rotate
from engine.weights import Checkpoint


class Norm:
    """Root mean square norm, computed in float32."""

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight = weight
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Layer:
    """Attention and a gated MLP, each behind a norm and beside the residual.

    q, k and v are one product, and so are gate and up.
    """

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, index: int) -> None:
        self.config = config
        self.index = index
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim
        prefix = f"model.layers.{index}."
        attention = prefix + "self_attn."
        self.input_norm = Norm(checkpoint.tensor(prefix + "input_layernorm.weight", hidden), config.norm_epsilon)
        self.qkv = _fused(
            checkpoint,
            {attention + "q_proj": query, attention + "k_proj": key, attention + "v_proj": key},
            hidden,
            config.qkv_bias,
        )
        self.query_norm = self.key_norm = None
        if config.qk_norm:
            self.query_norm = Norm(checkpoint.tensor(attention + "q_norm.weight", dim), config.norm_epsilon)
            self.key_norm = Norm(checkpoint.tensor(attention + "k_norm.weight", dim), config.norm_epsilon)
        self.output = _fused(checkpoint, {attention + "o_proj": hidden}, query, config.output_bias)
        self.mlp_norm = Norm(checkpoint.tensor(prefix + "post_attention_layernorm.weight", hidden), config.norm_epsilon)
        self.gate_up = _fused(
            checkpoint, {prefix + "mlp.gate_proj": inner, prefix + "mlp.up_proj": inner}, hidden, False
        )
        self.down = _fused(checkpoint, {prefix + "mlp.down_proj": hidden}, inner, False)

    def __call__(
        self,
        x: Tensor,
        cosine: Tensor,
        sine: Tensor,
        cache: Tensor,
        metadata: AttentionMetadata,
        attention: Attention,
        watch: LayerWatch | None,
    ) -> Tensor:
        query, key, value = self._project(self.input_norm(x), cosine, sine)
        write_kv(key, value, cache, self.index, metadata)
        if watch is not None and self.index + 1 in watch.ends:
            _wait_for_device(x)
            watch.tell(self.index + 1)
        x = x + self.output(attention(query, cache, self.index, metadata).flatten(1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)

    def _project(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k (both turned by their positions) and v, each `[num_tokens, heads, head_dim]`."""
        config = self.config
        heads = self.qkv(x).view(len(x), -1, config.head_dim)
        key_start, value_start = config.num_heads, config.num_heads + config.num_kv_heads
        value = heads[:, value_start:]
        if self.query_norm is not None and self.key_norm is not None:
            query = self.query_norm(heads[:, :key_start])
            key = self.key_norm(heads[:, key_start:value_start])
            return rotate(query, cosine, sine), rotate(key, cosine, sine), value
        turned = rotate(heads[:, :value_start], cosine, sine)
        return turned[:, :key_start], turned[:, key_start:], value


class Model:
    """Maintains the weights, ready for their device. Which attention runs is the caller's choice."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, attention: Attention) -> None:
        self.config = config
        self.attention = attention
        self.device = checkpoint.device
        self.rope = RotaryEmbedding(config.head_dim, config.rope_theta, config.rope_scaling, checkpoint.device)
        table = (config.vocab_size, config.hidden_size)
        self.embedding = checkpoint.tensor("model.embed_tokens.weight", *table)
        self.layers = [Layer(config, checkpoint, i) for i in range(config.num_layers)]
        self.norm = Norm(checkpoint.tensor("model.norm.weight", config.hidden_size), config.norm_epsilon)
        if config.tie_embeddings:
            checkpoint.skip("lm_head.weight")
        self.head = Linear(self.embedding if config.tie_embeddings else checkpoint.tensor("lm_head.weight", *table))
        checkpoint.finish()

    def with_attention(self, attention: Attention) -> Model:
        """The same weights, not copied, under another attention."""
        model = copy(self)
        model.attention = attention
        return model

    def hidden_states(
        self,
        token_ids: Tensor,
        positions: Tensor,
        cache: Tensor,
        metadata: AttentionMetadata,
        watch: LayerWatch | None = None,
    ) -> Tensor:
        """`[num_tokens, hidden_size]` before the last norm; K and V of these tokens are in the cache afterwards."""
        x = functional.embedding(token_ids, self.embedding)
        cosine, sine = self.rope.at(positions, x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine, cache, metadata, self.attention, watch)
        return x

    def logits(self, hidden_states: Tensor) -> Tensor:
        """float32 `[num_rows, vocab_size]`."""
        return self.head(self.norm(hidden_states)).to(torch.float32)


def _wait_for_device(x: Tensor) -> None:
    """Until all that was asked of it is done; on a CPU it is."""
    if x.is_cuda:
        torch.cuda.current_stream(x.device).synchronize()


def _fused(checkpoint: Checkpoint, parts: dict[str, int], num_inputs: int, bias: bool) -> Linear:
    """One `Linear` for the projections in `parts` (name: number of outputs), one below the other."""
    weights = [checkpoint.tensor(f"{name}.weight", size, num_inputs) for name, size in parts.items()]
    biases = [checkpoint.tensor(f"{name}.bias", size) for name, size in parts.items() if bias]
    return Linear(torch.cat(weights), torch.cat(biases) if bias else None)
