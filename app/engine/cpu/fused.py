"""Run a Llama-shaped model as one compiled forward."""

import time
from functools import lru_cache

import numpy as np
import torch

from app.config import Activations
from app.engine.cpu.draft_chain import chain_of
from app.engine.cpu.forward import Checkpoints, KVShape, Output
from app.engine.cpu.model_spec import ModelSpec
from app.engine.cpu.step_arrays import Rooms, step_of
from app.engine.early_exit.rows import without
from app.engine.kv.pages import KVCache
from app.engine.packing import PackedBatch
from app.engine.weights.blocks import EMBEDDING, HEAD, Blocks, Weight, Weights, dense, shape_of
from app.errors import NoIntegerProducts
from kernels.cpu import shapes
from kernels.cpu.attention import NO_WINDOW, SPLIT
from kernels.cpu.chain import Chain, draft
from kernels.cpu.decoder import decode
from kernels.cpu.products.embedding import ROW
from kernels.cpu.products.formats import FORMATS
from kernels.cpu.products.integer_formats import INTEGER_FORMATS
from kernels.cpu.products.linear import INTEGER_LINEAR, LINEAR
from kernels.cpu.products.pack import pack, pack_bias, pack_integer, pack_stored
from kernels.cpu.shapes import Model, Room, Step
from kernels.cpu.simd import LANES
from kernels.cpu.threads import team

COMPARED_ROWS = 2048  # at a time
TYPES = {torch.bfloat16: "BF16", torch.float16: "F16"}  # ggml's names


class FusedForward:
    def __init__(self, spec: ModelSpec, weights: Weights, activations: Activations = "float32") -> None:
        """Pack the weights in their own types, or as float32. Raises KeyError for a missing weight.

        int8 `activations` round the rows of integer weights: another target. Raises NoIntegerProducts if no weight is
        of integers.
        """
        self._rounds = activations == "int8"
        self.shape = KVShape(spec.num_layers, spec.num_key_heads, spec.head_dim)
        self.max_positions, self.vocab_size = spec.max_positions, spec.vocab_size
        self._positions = spec.positions
        self._held: list[np.ndarray] = []  # the arrays behind the addresses
        self.weight_bytes = 0  # of the linear layers and the head: what a step reads
        self._kv: KVCache | None = None
        self._team = team(torch.get_num_threads())
        self._model = self._take(spec, weights)
        self._waking_s = 0.0  # until all threads were at the last part of a pass: what parting it takes
        self._most_threads = self._team.size
        self._rooms = Rooms(self._model, self._most_threads)
        self.work_with(self._most_threads)

    def logits(self, plan: PackedBatch, checkpoints: Checkpoints | None = None) -> Output:
        """Raises ValueError for tokens outside the tables."""
        self._check(plan, ahead=0)
        step = step_of(plan, self._least_tiles)
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
                step = step_of(plan, self._least_tiles)
            checkpoints.took_s += time.perf_counter() - started + self._waking_s
        self._run(step, room, done, self._model.num_layers)
        n = len(plan.wanted)
        found = torch.from_numpy(logits)
        if found.shape != (n, self._model.vocab):
            found = found[:n, : self._model.vocab]
        return Output(found, best[:n].tolist(), self._rooms.read(n))

    def _run(self, step: Step, room: Room, first: int, end: int) -> None:
        model, started = self._model, time.perf_counter()
        awake = [0.0] * self._team.size

        def job(thread: int) -> None:
            awake[thread] = time.perf_counter()
            decode(model, step, room, first, end, thread)

        self._team.run(job)
        self._waking_s = max(awake) - started

    def work_with(self, threads: int) -> None:
        """Use at most the first number of threads, on the calling thread's cores."""
        self._team = team(min(threads, self._most_threads))
        self._rooms.threads = self._team.size
        self._least_tiles = -(-2 * self._team.size // self.shape.num_key_heads)  # each is attended a key head at a time

    def last_hidden(self, rows: int) -> np.ndarray:
        """Copy the last pass's final normed states, (rows, d) float32."""
        return self._rooms.normed(rows)

    def chain(
        self, plan: PackedBatch, depth: int, floor: float, head_ids: np.ndarray, absent: np.ndarray | None = None
    ) -> Chain:
        self._check(plan, ahead=depth - 1)
        step, chain = step_of(plan), chain_of(plan, depth, floor, head_ids, absent)
        room, logits, best = self._rooms.room(step, lines=len(chain.step.units))
        model = self._model
        self._team.run(lambda thread: draft(model, step, room, chain, thread))
        del logits, best  # the room held their addresses
        return chain

    def _check(self, plan: PackedBatch, ahead: int) -> None:
        """Raise ValueError outside the tables: kernels check no bound."""
        if plan.kv is not self._kv:
            self._attach(plan.kv)
        if max(plan.positions) + ahead >= self._positions or not 0 <= min(plan.ids) <= max(plan.ids) < self.vocab_size:
            raise ValueError("a token or a position is outside the model's range")
        if plan.added is not None and not _fits(plan.added, (len(plan.ids), self._model.hidden)):
            raise ValueError("what is added to the embeddings must be one float32 row for each token")

    def _attach(self, kv: KVCache) -> None:
        if kv.page_tokens % LANES or SPLIT % kv.page_tokens:
            raise ValueError(f"page_tokens must be a multiple of {LANES} that divides {SPLIT}, not {kv.page_tokens}")
        self._kv = kv
        keys, values = kv.keys, kv.values
        self._model = self._model._replace(
            page_tokens=kv.page_tokens, keys=keys.data_ptr(), values=values.data_ptr(), num_pages=keys.shape[1]
        )

    def _take(self, spec: ModelSpec, weights: Weights) -> Model:
        layers = [self._layer(spec, weights, i) for i in range(spec.num_layers)]
        cos, sin = spec.turns()
        of_head = weights[HEAD]  # once: it may be rounded when it is read
        head_size = shape_of(of_head)[0]
        head_kernel, head, head_rounds = self._linear(of_head, head_size, spec.hidden)
        embedding_kernel, embedding = self._embedding(spec, weights[EMBEDDING], of_head, 0 if head_rounds else head)
        rounds = head_rounds + sum(layer[slot + 2] for layer in layers for slot in shapes.WEIGHTS)
        if self._rounds and not rounds:
            raise NoIntegerProducts(
                "PACELINE_ACTIVATIONS=int8 needs weights of integers, and this target has none: PACELINE_WEIGHTS=q8_0 "
                "rounds them when they are loaded"
            )
        return Model(
            num_layers=spec.num_layers,
            hidden=spec.hidden,
            num_heads=spec.num_heads,
            num_key_heads=spec.num_key_heads,
            head_dim=spec.head_dim,
            inner=spec.inner,
            vocab=head_size,
            page_tokens=0,
            epsilon=spec.epsilon,
            scale=spec.scale,
            layers=np.array(layers, np.int64),
            embedding_kernel=embedding_kernel,
            embedding=embedding,
            final_norm=self._hold(_array(weights["model.norm.weight"])),
            head_kernel=head_kernel,
            head=head,
            head_rounds=head_rounds,
            rounds=int(rounds > 0),
            head_bias=self._hold(pack_bias(_array(weights.get("lm_head.bias")))),
            cos=self._hold(_array(cos)),
            sin=self._hold(_array(sin)),
            keys=0,
            values=0,
            num_pages=0,
        )

    def _layer(self, spec: ModelSpec, weights: Weights, index: int) -> list[int]:
        def find(name: str) -> np.ndarray:
            return _array(weights.get(f"model.layers.{index}.{name}"))

        def need(name: str) -> Weight:
            return weights[f"model.layers.{index}.{name}.weight"]

        slots = [0] * shapes.NUM_SLOTS
        slots[shapes.NORM1] = self._hold(_array(need("input_layernorm")))
        slots[shapes.NORM2] = self._hold(_array(need("post_attention_layernorm")))
        for slot, name in ((shapes.Q_NORM, "q_norm"), (shapes.K_NORM, "k_norm")):
            slots[slot] = self._hold(find(f"self_attn.{name}.weight"))
        window = spec.windows[index]
        slots[shapes.WINDOW] = NO_WINDOW if window is None else window
        siblings = [f"self_attn.{name}_proj" for name in "qkv"]
        slots[shapes.QKV_BIAS] = self._hold(pack_bias(np.concatenate([find(f"{name}.bias") for name in siblings])))
        slots[shapes.OUT_BIAS] = self._hold(pack_bias(find("self_attn.o_proj.bias")))
        slots[shapes.DOWN_BIAS] = self._hold(pack_bias(find("mlp.down_proj.bias")))
        d, inner = spec.hidden, spec.inner
        query, key = spec.num_heads * spec.head_dim, spec.num_key_heads * spec.head_dim
        for slot, weight, columns, depth in (
            *zip((shapes.Q, shapes.K, shapes.V), map(need, siblings), (query, key, key), (d, d, d), strict=True),
            (shapes.OUT, need("self_attn.o_proj"), d, query),
            (shapes.GATE_UP, _in_turn(need("mlp.gate_proj"), need("mlp.up_proj")), 2 * inner, d),
            (shapes.DOWN, need("mlp.down_proj"), d, inner),
        ):
            slots[slot : slot + 3] = self._linear(weight, columns, depth)
        return slots

    def _embedding(self, spec: ModelSpec, weight: Weight, of_head: Weight, head: int) -> tuple[int, int]:
        """Return the addresses of kernel and packed embedding. `head`: the packed head's, shared if equal, or 0.

        Raises ValueError for another shape.
        """
        if shape_of(weight) != (spec.vocab_size, spec.hidden):
            raise ValueError(f"the embedding has shape {shape_of(weight)}, expected {(spec.vocab_size, spec.hidden)}")
        if head and _is_same(weight, of_head):
            return ROW[_kind(weight)].address, head
        kind, packed = packed_once(weight)
        return ROW[kind].address, self._hold(packed)

    def _linear(self, weight: Weight, columns: int, depth: int) -> tuple[int, int, int]:
        if shape_of(weight) != (columns, depth):
            raise ValueError(f"a weight has shape {shape_of(weight)}, expected {(columns, depth)}")
        kind, rows = _stored(weight)
        if self._rounds and kind in INTEGER_FORMATS and depth % INTEGER_FORMATS[kind].depth == 0:
            packed = pack_integer(kind, rows, depth)
            self.weight_bytes += packed.nbytes
            return INTEGER_LINEAR[kind].address, self._hold(packed), 1
        kind, packed = _packed(weight)
        self.weight_bytes += packed.nbytes
        return LINEAR[kind].address, self._hold(packed), 0

    def _hold(self, array: np.ndarray) -> int:
        if array.size == 0:
            return 0
        self._held.append(array)
        return int(array.ctypes.data)


def _fits(array: np.ndarray, shape: tuple[int, int]) -> bool:
    return array.shape == shape and array.dtype == np.float32 and bool(array.flags.c_contiguous)


def _array(weight: Weight | None) -> np.ndarray:
    if weight is None:
        return np.zeros(0, np.float32)
    return np.ascontiguousarray(dense(weight).numpy())


def _kind(weight: Weight) -> str:
    kind, depth = _stored(weight)[0], shape_of(weight)[1]
    return kind if kind in FORMATS and depth % FORMATS[kind].depth == 0 else "F32"


def _packed(weight: Weight) -> tuple[str, np.ndarray]:
    kind = _kind(weight)
    return kind, pack(_array(weight)) if kind == "F32" else pack_stored(kind, _stored(weight)[1], shape_of(weight)[1])


@lru_cache(maxsize=1)
def packed_once(embedding: Weight) -> tuple[str, np.ndarray]:
    """Share it between all models of a process."""
    return _packed(embedding)


def _is_same(one: Weight, other: Weight) -> bool:
    (kind, rows), (other_kind, other_rows) = _stored(one), _stored(other)
    if kind != other_kind or rows.shape != other_rows.shape:
        return False
    pieces = (slice(first, first + COMPARED_ROWS) for first in range(0, len(rows), COMPARED_ROWS))
    is_one_place = rows.ctypes.data == other_rows.ctypes.data  # of a file that is mapped into memory
    return is_one_place or all(np.array_equal(rows[piece], other_rows[piece]) for piece in pieces)


def _stored(weight: Weight) -> tuple[str, np.ndarray]:
    if isinstance(weight, Blocks):
        return weight.type, weight.rows
    rows = weight.detach().contiguous()
    return TYPES.get(rows.dtype, "F32"), rows.view(torch.uint8).numpy()


def _in_turn(one: Weight, other: Weight) -> Weight:
    """Interleave sixteen rows of each: `open_gate` takes a pair of blocks at a time."""
    if isinstance(one, Blocks) and isinstance(other, Blocks) and one.type == other.type:
        return Blocks(one.type, _pairs(one.rows, other.rows), one.depth)
    if isinstance(one, Blocks) or isinstance(other, Blocks) or one.dtype != other.dtype:
        one, other = dense(one), dense(other)
    both = [tensor.detach().reshape(-1, LANES, tensor.shape[1]) for tensor in (one, other)]
    return torch.stack(both, 1).reshape(-1, one.shape[1])


def _pairs(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.stack([rows.reshape(-1, LANES, rows.shape[1]) for rows in (one, other)], 1).reshape(-1, one.shape[1])
