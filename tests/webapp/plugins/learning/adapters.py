"""The same for low-rank adapters, with the real peft on a tiny transformer of random weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

os.environ["HF_HUB_OFFLINE"] = "1"

from common import program
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

TOKENS = torch.arange(24).reshape(2, 12)


def adapted(**settings: Any) -> Any:
    """A model of two layers with adapters on queries and values."""
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
    )
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"], **settings)
    return get_peft_model(LlamaForCausalLM(config), lora)


def trainable(model: Any) -> list[torch.nn.Parameter]:
    """What get_peft_model left trainable."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def train(
    model: Any,
    optimizer: Any,
    steps: int = 8,
    clip: float | None = None,
    each: Callable[[], Any] = lambda: None,
) -> None:
    """Learns one batch by heart."""
    for _ in range(steps):
        each()
        model(input_ids=TOKENS, labels=TOKENS).loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(trainable(model), clip)
        optimizer.step()
        optimizer.zero_grad()


@program
def lora_learns() -> None:
    """Frozen base weights, B at zero in the first step, gradients clipped at 1."""
    model = adapted()
    train(model, torch.optim.AdamW(trainable(model), lr=1e-2), clip=1.0)


@program
def lora_beside_its_frozen_base() -> None:
    """The optimizer gets all parameters of the model; most are frozen."""
    model = adapted()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


@program
def lora_first_steps() -> None:
    """Three steps of a warm-up that begins at a rate of zero."""
    model = adapted()
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1e-8, total_iters=10)
    for _ in range(3):
        train(model, optimizer, steps=1)
        schedule.step()


@program
def lora_second_adapter() -> None:
    """One adapter is trained, another waits."""
    model = adapted()
    model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"]))
    train(model, torch.optim.AdamW(trainable(model), lr=1e-2))


@program
def lora_waits_in_the_optimizer() -> None:
    """The same, B of fresh ones not zero, and the optimizer holds them all."""
    model = adapted(init_lora_weights=False)
    model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj"]))
    both = [one for name, one in model.named_parameters() if "lora_" in name]
    train(model, torch.optim.AdamW(both, lr=1e-2))


@program
def lora_not_trainable() -> None:
    """Loaded as for inference; the head is trained."""
    model = adapted(inference_mode=True)
    model.base_model.model.lm_head.requires_grad_(True)
    train(model, torch.optim.AdamW(trainable(model), lr=1e-2))


@program
def lora_not_in_optimizer() -> None:
    """The optimizer was made of what was trainable before the adapter came."""
    model = adapted()
    head = model.base_model.model.lm_head.requires_grad_(True)
    train(model, torch.optim.AdamW(head.parameters(), lr=1e-2))


@program
def lora_disabled() -> None:
    """The adapter is switched off while the head is trained."""
    model = adapted()
    model.base_model.model.lm_head.requires_grad_(True)
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-2)
    with model.disable_adapter():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.requires_grad_(True)
        train(model, optimizer)


def checkpointed(inputs_require_grads: bool) -> None:
    """Reentrant checkpoints behind frozen embeddings, and a head that is trained."""
    model = adapted()
    base = model.base_model.model
    base.lm_head.requires_grad_(True)
    # Newer versions of transformers have the inputs require gradients by themselves.
    base._set_gradient_checkpointing(True, partial(checkpoint, use_reentrant=True))
    if inputs_require_grads:
        base.enable_input_require_grads()
    model.train()
    train(model, torch.optim.AdamW(trainable(model), lr=1e-2))


@program
def lora_checkpointed() -> None:
    """No input of a checkpoint requires a gradient, so the layers within get none."""
    checkpointed(inputs_require_grads=False)


@program
def lora_checkpointed_as_it_should() -> None:
    """The embeddings' output requires a gradient."""
    checkpointed(inputs_require_grads=True)


@program
def lora_clipped() -> None:
    """Clipped to next to nothing."""
    model = adapted()
    train(model, torch.optim.SGD(trainable(model), lr=1e-2), clip=1e-12)


@program
def lora_stays_zero() -> None:
    """A was set to zero as well: neither gets a gradient, ever."""
    model = adapted()
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            torch.nn.init.zeros_(parameter)
    train(model, torch.optim.AdamW(trainable(model), lr=1e-2))


@program
def lora_written_back() -> None:
    """The adapter is loaded again before each step; B is not zero."""
    model = adapted(init_lora_weights=False)
    first = {name: one.clone() for name, one in model.state_dict().items() if "lora_" in name}
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-2)
    train(model, optimizer, each=lambda: model.load_state_dict(first, strict=False))


@program
def lora_decayed() -> None:
    """B had learned; the loss is flat by now, and decay takes it away."""
    model = adapted()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    optimizer = torch.optim.SGD(trainable(model), lr=0.1, weight_decay=4.0)
    for _ in range(10):
        (1e-6 * model(input_ids=TOKENS, labels=TOKENS).loss).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def lora_compiled_away() -> None:
    """A region compiled before the adapter came computes without it."""
    model = adapted()
    head = model.base_model.model.lm_head.requires_grad_(True)
    plain = torch.compile(
        lambda hidden: torch.nn.functional.linear(hidden, head.weight), backend="aot_eager"
    )
    optimizer = torch.optim.AdamW(trainable(model), lr=1e-2)
    hidden = torch.randn(4, 16)
    for _ in range(8):
        plain(hidden).square().mean().backward()
        with torch.no_grad():
            model(input_ids=TOKENS)
        optimizer.step()
        optimizer.zero_grad()
