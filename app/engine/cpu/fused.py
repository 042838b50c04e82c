"""Run a Llama-shaped model as one compiled forward."""

import time
from collections.abc import Sequence as Listed

import numpy as np
import torch

from app.engine.cpu.draft_chain import chain_of
from app.engine.cpu.forward import Checkpoints, KVShape, Output
from app.engine.cpu.model_spec import ModelSpec
from app.engine.cpu.packed_model import Packed, PackedModel, slot_name
from app.engine.cpu.step_arrays import Rooms, step_of
from app.engine.early_exit.rows import without
from app.engine.kv.pages import KVCache
from app.engine.packing import PackedBatch
from kernels.cpu import shapes
from kernels.cpu.attention import ATTEND, ATTEND_F16, FIRST_SPLIT, NO_WINDOW
from kernels.cpu.chain import DRAFT, Chain, run_draft
from kernels.cpu.decoder import DECODE, run_decode
from kernels.cpu.products.embedding import ROW
from kernels.cpu.products.linear import LINEAR
from kernels.cpu.shapes import Model, Room, Step
from kernels.cpu.simd import LANES
from kernels.cpu.threads import team
from kernels.sampling.target_token import Choice


class FusedForward:
    def __init__(self, spec: ModelSpec, packed: PackedModel) -> None:
        self.shape = KVShape(spec.num_layers, spec.num_key_heads, spec.head_dim)
        self.max_positions, self.vocab_size = spec.max_positions, spec.vocab_size
        self._positions = spec.positions
        self._held: dict[int, np.ndarray] = {}  # the arrays behind the addresses
        self.weight_bytes = 0  # of the linear layers and the head: what a step reads
        self._kv: KVCache | None = None
        self._team = team(torch.get_num_threads())
        self._model = self._take(spec, packed)
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
            checkpoints.took_s += time.perf_counter() - started
        self._run(step, room, done, self._model.num_layers)
        n = len(plan.wanted)
        found = torch.from_numpy(logits)
        if found.shape != (n, self._model.vocab):
            found = found[:n, : self._model.vocab]
        return Output(found, best[:n].tolist(), self._rooms.read(n))

    def _run(self, step: Step, room: Room, first: int, end: int) -> None:
        self._team.lead(run_decode, DECODE.address, self._model, step, room, first, end)

    def work_with(self, threads: int) -> None:
        """Use at most the first number of threads, on the calling thread's cores."""
        self._team = team(min(threads, self._most_threads))
        self._rooms.threads = self._team.size
        self._least_tiles = -(-2 * self._team.size // self.shape.num_key_heads)  # each is attended a key head at a time

    @property
    def mapped_bytes(self) -> int:
        """Return the bytes of a file, which the system counts as free memory though each step reads them."""
        return sum(array.nbytes for array in self._held.values() if not array.flags.writeable)

    def last_hidden(self, rows: int) -> np.ndarray:
        """Copy the last pass's final normed states, (rows, d) float32."""
        return self._rooms.normed(rows)

    def chain(
        self,
        plan: PackedBatch,
        depth: int,
        floor: float,
        head_ids: np.ndarray,
        absent: np.ndarray | None,
        choices: Listed[Choice],
    ) -> Chain:
        self._check(plan, ahead=depth - 1)
        step, chain = step_of(plan), chain_of(plan, depth, floor, head_ids, absent, choices)
        room, logits, best = self._rooms.room(step, lines=len(chain.step.units))
        chain = chain._replace(logits=logits)
        self._team.lead(run_draft, DRAFT.address, self._model, step, room, chain)
        del best  # the room holds it
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
        if kv.page_tokens % LANES or FIRST_SPLIT % kv.page_tokens:
            raise ValueError(
                f"page_tokens must be a multiple of {LANES} that divides {FIRST_SPLIT}, not {kv.page_tokens}"
            )
        self._kv = kv
        keys, values = kv.keys, kv.values
        self._model = self._model._replace(
            page_tokens=kv.page_tokens,
            keys=keys.data_ptr(),
            values=values.data_ptr(),
            num_pages=keys.shape[1],
            kv_item=keys.itemsize,
            attention_kernel={torch.float32: ATTEND, torch.float16: ATTEND_F16}[keys.dtype].address,
        )

    def _take(self, spec: ModelSpec, packed: PackedModel) -> Model:
        cos, sin = spec.turns()
        head_kernel, head, head_form = self._linear(packed["head"])
        embedding = packed["embedding"]
        layers = [self._layer(spec, packed, i) for i in range(spec.num_layers)]
        return Model(
            num_layers=spec.num_layers,
            hidden=spec.hidden,
            num_heads=spec.num_heads,
            num_key_heads=spec.num_key_heads,
            head_dim=spec.head_dim,
            inner=spec.inner,
            vocab=packed["head"].columns,
            page_tokens=0,
            epsilon=spec.epsilon,
            scale=spec.scale,
            layers=np.array(layers, np.int64),
            attention_kernel=ATTEND.address,
            embedding_kernel=ROW[embedding.kind].address,
            embedding=self._hold(embedding.array),
            final_norm=self._hold(packed["final_norm"].array),
            head_kernel=head_kernel,
            head=head,
            head_form=head_form,
            row_form=max(weight.row_form for weight in packed.values()),
            head_bias=self._hold(packed["head_bias"].array),
            cos=self._hold(cos.numpy()),
            sin=self._hold(sin.numpy()),
            keys=0,
            values=0,
            num_pages=0,
            kv_item=0,
        )

    def _layer(self, spec: ModelSpec, packed: PackedModel, index: int) -> list[int]:
        slots = [0] * shapes.NUM_SLOTS
        window = spec.windows[index]
        slots[shapes.WINDOW] = NO_WINDOW if window is None else window
        for slot in shapes.ARRAYS:
            slots[slot] = self._hold(packed[slot_name(index, slot)].array)
        for slot in shapes.WEIGHTS:
            slots[slot : slot + 3] = self._linear(packed[slot_name(index, slot)])
        return slots

    def _linear(self, weight: Packed) -> tuple[int, int, int]:
        self.weight_bytes += weight.array.nbytes
        return LINEAR[weight.row_form][weight.kind].address, self._hold(weight.array), weight.row_form

    def _hold(self, array: np.ndarray) -> int:
        if array.size == 0:
            return 0
        address = int(array.ctypes.data)
        self._held[address] = array
        return address


def _fits(array: np.ndarray, shape: tuple[int, int]) -> bool:
    return array.shape == shape and array.dtype == np.float32 and bool(array.flags.c_contiguous)
