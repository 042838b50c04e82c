"""Llama-shaped models as one compiled forward: weights taken from the Hugging Face modules, checked against them.

The rest of the engine sees a `Forward` like any other. What is not of that shape, or does not say the same as the
modules it was taken from, is refused with NotFusable and runs on its own modules.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from app.engine.chains import chain_of
from app.engine.forward import Checkpoints, Output
from app.engine.hooked import HookedForward
from app.engine.kv import KVCache, PagePool
from app.engine.llama import NotFusable, check_llama_shape
from app.engine.plan import Plan, plan
from app.engine.probe import probe
from app.engine.pruning import without
from app.engine.steps import Rooms, step_of
from app.state import Tree, Work
from kernels.cpu import shapes
from kernels.cpu.attention import NO_WINDOW
from kernels.cpu.chain import Chain, draft
from kernels.cpu.decoder import decode
from kernels.cpu.lanes import LANES
from kernels.cpu.linear import pack, pack_bias, pack_int8
from kernels.cpu.shapes import Model, Room, Step
from kernels.cpu.team import team

CHECK_TOKENS = 40
TOLERANCE = 1e-3  # of the logits' standard deviation
SLACK = 256  # positions beyond the model's context: a tree at its very end


class FusedForward:
    """A Llama-shaped model's weights, packed, and the memory its steps work in."""

    can_prune = True

    def __init__(self, hooked: HookedForward, is_int8: bool = False) -> None:
        """With `is_int8` the linear layers' weights are rounded to int8, column by column: another model, which says
        something else, and the same whatever runs beside it. Raises NotFusable."""
        _check_shape(hooked)
        self._is_int8 = is_int8
        self.shape, self.max_positions, self.vocab_size = hooked.shape, hooked.max_positions, hooked.vocab_size
        self._held: list[np.ndarray] = []  # the arrays behind the addresses
        self._kv: KVCache | None = None
        self._team = team(torch.get_num_threads())
        self._model = self._take(hooked)
        self._waking_s = 0.0  # until all threads were at the last part of a pass: what parting it takes
        self._rooms = Rooms(self._model, self._team.size)

    def logits(self, plan: Plan, checkpoints: Checkpoints | None = None) -> Output:
        """See Forward."""
        self._check(plan, ahead=0)
        step = step_of(plan)
        room, logits, best = self._rooms.room(step)
        done = 0
        for layer in checkpoints.layers if checkpoints else ():
            self._run(step, room, done, layer)
            started, done = time.perf_counter(), layer
            assert checkpoints is not None
            rows = checkpoints.keep(layer, self._rooms.states(len(plan.ids)))
            if rows is not None:
                self._rooms.compact(rows)
                plan = without(plan, rows)
                step = step_of(plan)
            checkpoints.took_s += time.perf_counter() - started + self._waking_s
        self._run(step, room, done, self._model.num_layers)
        n = len(plan.wanted)
        said = torch.from_numpy(logits)[:n, : self._model.vocab]
        return Output(said, best[:n].tolist(), self._rooms.read(n))

    def _run(self, step: Step, room: Room, first: int, end: int) -> None:
        model, started = self._model, time.perf_counter()
        awake = [0.0] * self._team.size

        def job(thread: int) -> None:
            awake[thread] = time.perf_counter()
            decode(model, step, room, first, end, thread)

        self._team.run(job)
        self._waking_s = max(awake) - started

    def last_hidden(self, rows: int) -> np.ndarray:
        """A copy of the final normed hidden states (rows, d) of the first rows of the last pass, float32: what the
        head reads. Those of rows that were not wanted, too, which `logits` has no use for and distilling has."""
        return self._rooms.normed(rows)

    def chain(
        self, plan: Plan, depth: int, floor: float, head_ids: np.ndarray, absent: np.ndarray | None = None
    ) -> Chain:
        """Guess up to `depth` tokens for each of the plan's sequences, whose last rows alone are wanted: each step goes
        on from the likeliest token. Ends when no sequence's confidences multiply to `floor`. `head_ids`: the tokens
        that the head's columns stand for; empty: all, in order. `absent`: see `chain_of`."""
        self._check(plan, ahead=depth - 1)
        step, chain = step_of(plan), chain_of(plan, depth, floor, head_ids, absent)
        room, logits, best = self._rooms.room(step, lines=len(chain.step.units))
        model = self._model
        self._team.run(lambda thread: draft(model, step, room, chain, thread))
        del logits, best  # the room held their addresses
        return chain

    def _check(self, plan: Plan, ahead: int) -> None:
        """What is outside the tables would be read from anywhere. Raises ValueError."""
        if plan.kv is not self._kv:
            self._attach(plan.kv)
        if max(plan.positions) + ahead >= self._positions or not 0 <= min(plan.ids) <= max(plan.ids) < self.vocab_size:
            raise ValueError("a token or a position is outside the model's range")
        if plan.added is not None and not _fits(plan.added, (len(plan.ids), self._model.hidden)):
            raise ValueError("what is added to the embeddings is not one float32 row a token")

    def _attach(self, kv: KVCache) -> None:
        if kv.page_tokens % LANES:
            raise ValueError(f"page_tokens must be a multiple of {LANES}, not {kv.page_tokens}")
        self._kv = kv
        keys, values = kv.keys, kv.values
        self._model = self._model._replace(
            page_tokens=kv.page_tokens, keys=keys.data_ptr(), values=values.data_ptr(), num_pages=keys.shape[1]
        )

    def _take(self, hooked: HookedForward) -> Model:
        model: Any = hooked.model
        config, inner = model.config.get_text_config(), model.model.layers[0].mlp.gate_proj.out_features
        layers = [self._layer(layer, kind.window) for layer, kind in zip(model.model.layers, hooked.kinds, strict=True)]
        self._positions = self.max_positions + SLACK
        positions = torch.arange(self._positions)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), positions)
        if cos.shape[-1] != self.shape.head_dim:
            raise NotFusable("positions turn a part of each head only")
        head = model.lm_head
        packed_head, head_scales = self._weights(_array(head.weight))
        return Model(
            num_layers=self.shape.num_layers,
            hidden=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_key_heads=self.shape.num_key_heads,
            head_dim=self.shape.head_dim,
            inner=inner,
            vocab=head.weight.shape[0],
            page_tokens=0,
            epsilon=float(model.model.norm.variance_epsilon),
            scale=float(hooked.kinds[0].scale),
            layers=np.array(layers, np.int64),
            embedding=self._hold(_array(model.model.embed_tokens.weight)),
            final_norm=self._hold(_array(model.model.norm.weight)),
            head=packed_head,
            head_scales=head_scales,
            head_bias=self._hold(pack_bias(_array(head.bias))),
            cos=self._hold(_array(cos[0])),
            sin=self._hold(_array(sin[0])),
            keys=0,
            values=0,
            num_pages=0,
        )

    def _layer(self, layer: Any, window: int | None) -> list[int]:
        attention, mlp = layer.self_attn, layer.mlp
        slots = [0] * shapes.NUM_SLOTS
        slots[shapes.NORM1] = self._hold(_array(layer.input_layernorm.weight))
        slots[shapes.NORM2] = self._hold(_array(layer.post_attention_layernorm.weight))
        siblings = (attention.q_proj, attention.k_proj, attention.v_proj)
        whole = np.concatenate([_array(one.weight) for one in siblings])
        slots[shapes.QKV], slots[shapes.QKV_SCALES] = self._weights(whole)
        if siblings[0].bias is not None:
            bias = np.concatenate([_array(one.bias) for one in siblings])
            slots[shapes.QKV_BIAS] = self._hold(pack_bias(bias))
        for slot, name in ((shapes.Q_NORM, "q_norm"), (shapes.K_NORM, "k_norm")):
            if hasattr(attention, name):
                slots[slot] = self._hold(_array(getattr(attention, name).weight))
        for slot, scales, bias_slot, linear in (
            (shapes.OUT, shapes.OUT_SCALES, shapes.OUT_BIAS, attention.o_proj),
            (shapes.DOWN, shapes.DOWN_SCALES, shapes.DOWN_BIAS, mlp.down_proj),
        ):
            slots[slot], slots[scales] = self._weights(_array(linear.weight))
            slots[bias_slot] = self._hold(pack_bias(_array(linear.bias)))
        gate, up = (
            _array(linear.weight).reshape(-1, LANES, linear.in_features) for linear in (mlp.gate_proj, mlp.up_proj)
        )
        pairs = np.stack([gate, up], 1).reshape(-1, mlp.gate_proj.in_features)  # sixteen columns of each in turn
        slots[shapes.GATE_UP], slots[shapes.GATE_UP_SCALES] = self._weights(pairs)
        slots[shapes.WINDOW] = NO_WINDOW if window is None else window
        return slots

    def _weights(self, weight: np.ndarray) -> tuple[int, int]:
        """Addresses of a packed weight and of its columns' scales."""
        if not self._is_int8:
            return self._hold(pack(weight)), 0
        packed, scales = pack_int8(weight)
        return self._hold(packed), self._hold(scales)

    def _hold(self, array: np.ndarray) -> int:
        """Keep an array alive and return its address; 0 for an empty one."""
        if array.size == 0:
            return 0
        self._held.append(array)
        return int(array.ctypes.data)


def fuse(hooked: HookedForward, is_int8: bool = False) -> FusedForward:
    """The fused forward of a model, once it has said the same as the model's modules. Raises NotFusable.

    With `is_int8` the modules' weights are rounded already (`round_weights`).
    """
    check_llama_shape(hooked.model)
    if hooked.model.device.type != "cpu":
        raise NotFusable("it is not on the CPU")
    expected = _trial(hooked)  # also shows how each layer attends
    fused = FusedForward(hooked, is_int8)
    off = (_trial(fused) - expected).abs().max() / expected.std()
    if not off < TOLERANCE:
        raise NotFusable(f"the fused forward is {off:.1e} standard deviations off")
    return fused


def round_weights(model: nn.Module) -> None:
    """Round the linear layers' weights to what int8 columns can hold. Embeddings, tied ones too, stay as they are."""
    for layer in model.modules():
        if type(layer) is nn.Linear:
            packed, scales = pack_int8(_array(layer.weight))
            columns = packed.transpose(0, 2, 1).reshape(-1, layer.in_features)[: layer.out_features]
            rounded = torch.from_numpy(columns * scales[: layer.out_features, None])
            layer.weight = nn.Parameter(rounded, requires_grad=False)


def _trial(forward: Any) -> torch.Tensor:
    """Logits of some tokens read in two pieces."""
    shape = forward.shape
    kv = KVCache(shape.num_layers, 4, shape.num_key_heads, shape.head_dim, 32)
    sequence = probe(CHECK_TOKENS, forward.vocab_size)
    PagePool(4, 32).try_grow(sequence.pages, CHECK_TOKENS)
    half = CHECK_TOKENS // 2
    forward.logits(plan([Work(sequence, 0, sequence.tokens[:half], Tree(), final=False)], kv))
    rest = plan([Work(sequence, half, sequence.tokens[half:], Tree(), final=False)], kv)
    rest.wanted = list(range(len(rest.ids)))
    rows: torch.Tensor = forward.logits(rest).logits
    return rows


def _check_shape(hooked: HookedForward) -> None:
    model: Any = hooked.model
    config = model.config.get_text_config()
    mlp = model.model.layers[0].mlp
    if hooked.shape.head_dim % (2 * LANES) or config.hidden_size % LANES or mlp.gate_proj.out_features % LANES:
        raise NotFusable(f"heads are not of {2 * LANES}, or layers not of {LANES} numbers or multiples")
    if len({kind.scale for kind in hooked.kinds}) > 1 or any(kind.softcap for kind in hooked.kinds):
        raise NotFusable("its layers attend in ways of their own")


def _fits(array: np.ndarray, shape: tuple[int, int]) -> bool:
    return array.shape == shape and array.dtype == np.float32 and bool(array.flags.c_contiguous)


def _array(tensor: torch.Tensor | None) -> np.ndarray:
    if tensor is None:
        return np.zeros(0, np.float32)
    return np.ascontiguousarray(tensor.detach().float().numpy())
