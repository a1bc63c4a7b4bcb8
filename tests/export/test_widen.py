"""A widened model computes what the original computes."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from outrider.export.widen import Shape, widened, widened_config, widened_head
from outrider.pipelines.errors import InvalidOption


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def model(request: pytest.FixtureRequest) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=request.param,
        initializer_range=0.3,
        rms_norm_eps=1e-2,  # large, so that a wrong one shows
    )
    model = LlamaForCausalLM(config).eval().double()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    return model


def logits(model: LlamaForCausalLM) -> torch.Tensor:
    ids = torch.arange(40).reshape(2, 20) % 97
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


@pytest.mark.parametrize(
    "shape",
    [
        Shape(48, 3, 6, 2, 80),
        Shape(150, 3, 6, 2, 80),
        Shape(48, 7, 6, 2, 80),
        Shape(48, 3, 16, 4, 80),
        Shape(48, 3, 6, 2, 200),
        Shape(96, 5, 12, 3, 128),
    ],
    ids=["same", "wider", "deeper", "more heads", "more units", "all"],
)
def test_widening_keeps_the_logits(model: LlamaForCausalLM, shape: Shape) -> None:
    wide = widened(model, shape)
    assert Shape.of(wide.config) == shape
    torch.testing.assert_close(logits(wide), logits(model), rtol=1e-5, atol=1e-5)  # norms are float32 inside


def test_no_two_new_matrices_are_equal_so_that_no_runtime_shares_them(model: LlamaForCausalLM) -> None:
    wide = widened(model, Shape(96, 6, 12, 3, 128))
    matrices = [weight for name, weight in wide.named_parameters() if weight.ndim == 2]
    for i, left in enumerate(matrices):
        assert not any(left.shape == right.shape and torch.equal(left, right) for right in matrices[:i])


def test_what_was_there_is_spread_evenly(model: LlamaForCausalLM) -> None:
    wide = widened(model, Shape(96, 3, 6, 2, 80))
    used = wide.model.embed_tokens.weight.any(dim=0)
    assert used.tolist() == [True, False] * 48


def test_the_comparison_sees_a_norm_that_was_not_rescaled(model: LlamaForCausalLM) -> None:
    wide = copy.deepcopy(widened(model, Shape(96, 3, 6, 2, 80)))
    wide.model.norm.weight.data *= 1.001
    assert not torch.allclose(logits(wide), logits(model), rtol=1e-6)


@pytest.mark.parametrize("shape", [Shape(40, 3, 6, 2, 80), Shape(48, 3, 6, 3, 80), Shape(50, 3, 6, 2, 80)])
def test_a_shape_that_cannot_hold_the_model_is_refused(model: LlamaForCausalLM, shape: Shape) -> None:
    with pytest.raises(InvalidOption):
        widened(model, shape)


def test_a_widened_head_has_the_logits_and_states_of_the_original() -> None:
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, draft_vocab_size=31, hidden_size=48, intermediate_size=80, num_hidden_layers=1, head_dim=8,
        num_attention_heads=6, num_key_value_heads=2, initializer_range=0.3, rms_norm_eps=1e-2,
    )  # fmt: skip
    head = LlamaEagle3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in head.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    weights = {name: weight for name, weight in head.model.state_dict().items() if "embed" not in name}
    shape = Shape(96, 5, 12, 3, 128)
    wide_weights = widened_head(weights, config, shape)
    wide_config = LlamaConfig(**widened_config(config.to_dict(), shape))
    assert Shape.of(wide_config) == Shape(96, 1, 12, 3, 128)
    wide = LlamaEagle3ForCausalLM(wide_config).eval()
    wide.model.load_state_dict(wide_weights, strict=False)
    stream = torch.arange(48) * 2
    with torch.no_grad():
        wide.model.embed_tokens.weight.zero_()
        wide.model.embed_tokens.weight[:, stream] = head.model.embed_tokens.weight
        ids, states = torch.randint(0, 97, (1, 20)), torch.randn(1, 20, 3, 48)
        wide_states = torch.zeros(1, 20, 3, 96)
        wide_states[..., stream] = states
        seen: list[torch.Tensor] = []
        outputs = []
        for each, fed in ((head, states), (wide, wide_states)):
            each.model.norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
            outputs.append(each(input_ids=ids, hidden_states=fed.flatten(2), use_cache=True).logits)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen[1][..., stream], seen[0], rtol=1e-4, atol=1e-4)
    assert seen[1].abs().sum() == pytest.approx(float(seen[1][..., stream].abs().sum()), rel=1e-5)


def test_widened_blocks_behind_a_state_and_embeddings_give_the_results_of_the_original() -> None:
    """As Hydra's are, and Medusa's without `fc`."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=80, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
    )  # fmt: skip
    sizes = {"fc.weight": (48, 144), "0.linear.weight": (48, 48), "0.linear.bias": (48,), "1.weight": (97, 48)}
    weights = {name: torch.randn(size) for name, size in sizes.items()}
    wide = widened_head(weights, config, Shape(96, 5, 12, 3, 128))
    rows, stream = torch.randn(20, 3, 48), torch.arange(48) * 2
    wide_rows = torch.zeros(20, 3, 96)
    wide_rows[..., stream] = rows

    def results(weights: dict[str, torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
        state = rows.flatten(1) @ weights["fc.weight"].T
        block = state @ weights["0.linear.weight"].T + weights["0.linear.bias"]
        return (state + torch.nn.functional.silu(block)) @ weights["1.weight"].T

    torch.testing.assert_close(results(wide, wide_rows), results(weights, rows), rtol=1e-4, atol=1e-3)


def test_a_head_does_not_fit_a_narrower_target() -> None:
    config = LlamaConfig(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=1)
    with pytest.raises(InvalidOption, match="hidden_size=24 is less than the model's own 48"):
        widened_head({"lm_head.weight": torch.zeros(1, 48)}, config, Shape(24, 3, 6, 2, config.intermediate_size))
