"""Which engine multiplies small batches fastest on this CPU: the linear layers of two models, 1 to 32 rows at once.

    python bench/engines.py --threads 2

Per model a stack of decoder layers with random weights in the model's shapes, without attention: queries, keys and
values in one matrix, output, gate and up in one matrix, down; then the output matrix. A few layers are run and their
time is scaled to the whole model, so that a run takes minutes.

    torch bf16           eager
    inductor bf16        torch.compile with frozen weights, one graph per number of rows
    torchao int8 / int4  its weight-only formats, compiled likewise
    onnxruntime int4     MatMulNBits, blocks of 32, activations in 8 bits
    openvino f32 / bf16  as the compiled target has them (`branchwise.target.openvino_engine`)
    openvino int8 / int4 products in bfloat16; "dynamic" rounds activations to 8 bits, row by row, where it may

Two limits are measured in the same run: reading every weight once, and multiplying at the machine's best rate (in
bfloat16, and in 8 bits by torch's own `_int_mm`). A time is printed in milliseconds and as a multiple of the larger
limit of its format. A way that fails is listed with its error. Times are the best of several calls: a busy machine can
only add to them. With one thread they are processor time, which a busy machine disturbs little.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from branchwise.bench.limits import Limits, best_ms, measure_limits
from branchwise.bench.provenance import provenance
from branchwise.target.decoder_parts import Linear
from branchwise.target.quantised import GROUP, quantise

Call = Callable[[Tensor], Any]
"""Takes rows ``[n, hidden]``."""
BITS = {"f32": 32.0, "bf16": 16.0, "int8": 8.0, "int4": 5.0}
"""Read per weight; 4-bit formats have about one more bit of scales and zeros."""


@dataclass(frozen=True)
class Shape:
    """One model.

    Attributes:
        hidden: width of the hidden states.
        key_width: of keys, and of values.
        inner: width of the MLP.
        layers: of the model.
        vocab: rows of the output matrix.
    """

    name: str
    hidden: int
    key_width: int
    inner: int
    layers: int
    vocab: int

    @property
    def matrices(self) -> list[tuple[str, int, int]]:
        """Name, rows and columns of the matrices of a layer."""
        return [
            ("qkv", self.hidden + 2 * self.key_width, self.hidden),
            ("output", self.hidden, self.hidden),
            ("gate_up", 2 * self.inner, self.hidden),
            ("down", self.hidden, self.inner),
        ]

    def weights(self) -> int:
        """Numbers in all matrices of the model."""
        return self.layers * sum(rows * columns for _, rows, columns in self.matrices) + self.vocab * self.hidden


SHAPES = (
    Shape("SmolLM2-135M", 576, 192, 1536, 30, 49152),
    Shape("Qwen2.5-Coder-1.5B", 1536, 256, 8960, 28, 151936),
)


class Layers(nn.Module):
    """Some decoder layers without norms and attention. Weights are scaled so that rows stay of about one size."""

    def __init__(self, shape: Shape, count: int) -> None:
        super().__init__()
        self.hidden = shape.hidden
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: _linear(rows, columns) for name, rows, columns in shape.matrices})
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[n, hidden]`` to the same."""
        for layer in self.layers:
            mixed = layer["output"](layer["qkv"](x)[:, : self.hidden])
            gate, up = layer["gate_up"](mixed).chunk(2, dim=1)
            x = layer["down"](nn.functional.silu(gate) * up)
        return x


def _linear(rows: int, columns: int) -> nn.Linear:
    made = nn.Linear(columns, rows, bias=False)
    made.weight.data.normal_(0.0, 1.6 * columns**-0.5)
    return made


# ways: a module in float32 -> something to call


def torch_bf16(module: nn.Module) -> Call:
    return module.bfloat16()


def _inductor(module: nn.Module) -> Call:
    import torch._inductor.config as inductor

    inductor.freezing = True
    return torch.compile(module, dynamic=False)


def inductor_bf16(module: nn.Module) -> Call:
    return _inductor(module.bfloat16())


def torchao_int8(module: nn.Module) -> Call:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    module = module.bfloat16()
    quantize_(module, Int8WeightOnlyConfig())
    return _inductor(module)


def torchao_int8_dynamic(module: nn.Module) -> Call:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    module = module.bfloat16()
    quantize_(module, Int8DynamicActivationInt8WeightConfig())
    return _inductor(module)


def torchao_int4(module: nn.Module) -> Call:
    from torchao.quantization import Int4WeightOnlyConfig, quantize_

    module = module.bfloat16()
    quantize_(module, Int4WeightOnlyConfig(group_size=GROUP))
    return _inductor(module)


def onnxruntime_int4(module: nn.Module) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(onnx_bytes(module), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x.float().numpy()})


def openvino(module: nn.Module, weights: str, products: str, dynamic: bool) -> Call:
    import openvino as ov
    from openvino import opset15 as ops

    from branchwise.target.openvino_engine import Numbers
    from branchwise.target.openvino_linear import Linears
    from branchwise.target.openvino_tensors import int_constant, named, parameter, shared

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    names = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    matrices = dtypes.get(weights) or {name: quantise(part.weight.data, weights) for name, part in names.items()}
    linears = Linears(matrices)

    def node(name: str, x: Any) -> Any:
        return linears.node(name, Linear(names[name].weight.data, None), x)

    first = next(iter(names.values()))
    x = entry = parameter("x", ov.Type.f32, [-1, first.in_features])
    if isinstance(module, Layers):
        for index, layer in enumerate(module.layers):
            mixed = node(f"layers.{index}.qkv", x)
            mixed = ops.slice(mixed, *(int_constant([n]) for n in (0, module.hidden, 1, 1)))
            inner = layer["down"].in_features
            both = node(f"layers.{index}.gate_up", node(f"layers.{index}.output", mixed))
            halves = ops.variadic_split(both, int_constant(1), int_constant([inner, inner]))
            x = node(f"layers.{index}.down", ops.multiply(ops.swish(halves.output(0)), halves.output(1)))
    else:
        x = node(next(iter(names)), x)
    settings = Numbers(products, torch.float32, dynamic).settings()
    settings |= {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    request = ov.Core().compile_model(ov.Model([named(x, "y")], [entry]), "CPU", settings).create_infer_request()

    def call(x: Tensor, keeps: Any = linears.keeps) -> None:
        request.set_tensor("x", shared(x.float()))
        request.start_async()
        request.wait()

    return call


def ways() -> dict[str, tuple[str, Callable[[nn.Module], Call]]]:
    """Format and maker of every way by its name."""
    made: dict[str, tuple[str, Callable[[nn.Module], Call]]] = {
        "torch bf16": ("bf16", torch_bf16),
        "inductor bf16": ("bf16", inductor_bf16),
        "torchao int8": ("int8", torchao_int8),
        "torchao int8 dynamic": ("int8", torchao_int8_dynamic),
        "torchao int4": ("int4", torchao_int4),
        "onnxruntime int4": ("int4", onnxruntime_int4),
    }
    for weights, products, dynamic in (
        ("f32", "f32", False),
        ("bf16", "bf16", False),
        ("int8", "bf16", False),
        ("int8", "f32", False),
        ("int8", "f32", True),
        ("int4", "bf16", False),
        ("int4", "f32", False),
    ):
        name = f"openvino {weights} in {products}" + (" dynamic" if dynamic else "")
        made[name] = (weights, lambda module, w=weights, p=products, d=dynamic: openvino(module, w, p, d))
    return made


# onnx, written by hand: the package that writes it is not needed for anything else


def onnx_bytes(module: nn.Module) -> bytes:
    """The model as an ONNX file whose matrices are MatMulNBits in blocks of 32."""
    nodes, initializers = [], []

    def matmul(linear: nn.Linear, x: str, y: str) -> None:
        q = quantise(linear.weight.data, "int4")
        rows, columns = linear.weight.shape
        # blocks are whole bytes, the even column in the lower half; zeros are whole numbers there
        values = q.values.view(rows, columns // GROUP, GROUP // 2)
        initializers.append(_tensor(f"{y}.w", 2, tuple(values.shape), values.numpy().tobytes()))
        initializers.append(_tensor(f"{y}.s", 1, (q.scale.numel(),), q.scale.numpy().tobytes()))
        attributes = {"K": columns, "N": rows, "bits": 4, "block_size": GROUP, "accuracy_level": 4}
        nodes.append(_node("MatMulNBits", [x, f"{y}.w", f"{y}.s"], [y], attributes, "com.microsoft"))

    for name, bounds in (("zero", 0), ("one", 1)):
        initializers.append(_tensor(name, 7, (1,), struct.pack("<q", bounds)))
    if isinstance(module, Layers):
        width, x = module.hidden, "x"
        initializers.append(_tensor("width", 7, (1,), struct.pack("<q", width)))
        for index, layer in enumerate(module.layers):
            at = f"l{index}."
            matmul(layer["qkv"], x, at + "qkv")
            nodes.append(_node("Slice", [at + "qkv", "zero", "width", "one"], [at + "q"]))
            matmul(layer["output"], at + "q", at + "o")
            matmul(layer["gate_up"], at + "o", at + "gu")
            nodes.append(_node("Split", [at + "gu"], [at + "g", at + "u"], {"axis": 1, "num_outputs": 2}))
            nodes.append(_node("Sigmoid", [at + "g"], [at + "s"]))
            nodes.append(_node("Mul", [at + "g", at + "s"], [at + "a"]))
            nodes.append(_node("Mul", [at + "a", at + "u"], [at + "m"]))
            x = "y" if index == len(module.layers) - 1 else at + "d"
            matmul(layer["down"], at + "m", x)
        columns = rows = width
    else:
        linear = next(part for part in module.modules() if isinstance(part, nn.Linear))
        rows, columns = linear.weight.shape
        matmul(linear, "x", "y")
    graph = b"".join(_field(1, node) for node in nodes) + _field(2, b"g")
    graph += b"".join(_field(5, tensor) for tensor in initializers)
    graph += _field(11, _value("x", columns)) + _field(12, _value("y", rows))
    opsets = _field(8, _field(1, b"") + _number(2, 18)) + _field(8, _field(1, b"com.microsoft") + _number(2, 1))
    return _number(1, 8) + opsets + _field(7, graph)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _tensor(name: str, kind: int, shape: tuple[int, ...], content: bytes) -> bytes:
    return b"".join(_number(1, n) for n in shape) + _number(2, kind) + _field(8, name.encode()) + _field(9, content)


def _node(
    kind: str, inputs: list[str], outputs: list[str], attributes: dict[str, int] | None = None, domain: str = ""
) -> bytes:
    made = b"".join(_field(1, name.encode()) for name in inputs) + b"".join(_field(2, n.encode()) for n in outputs)
    made += _field(4, kind.encode())
    for name, value in (attributes or {}).items():
        made += _field(5, _field(1, name.encode()) + _number(3, value) + _number(20, 2))
    return made + (_field(7, domain.encode()) if domain else b"")


def _value(name: str, width: int) -> bytes:
    shape = _field(1, _field(2, b"n")) + _field(1, _number(1, width))
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, 1) + _field(2, shape)))


# measuring


def int8_rate() -> float:
    """Whole-number products per second, multiplication and addition counted as two."""
    one, other = (torch.randint(-128, 127, (1024, 1024), dtype=torch.int8) for _ in range(2))
    return 2 * 1024**3 / (best_ms(lambda: torch._int_mm(one, other), 5) / 1e3)


def limit_ms(shape: Shape, weights: str, rows: int, limits: Limits, int8: float) -> float:
    """Reading every weight once, or multiplying every weight with every row, whichever takes longer."""
    read = shape.weights() * BITS[weights] / 8 / limits.bytes_per_second
    rate = limits.operations_per_second["float32" if weights == "f32" else "bfloat16"]
    rate = max(rate, int8) if weights.startswith("int") else rate
    return 1e3 * max(read, 2 * shape.weights() * rows / rate)


@torch.no_grad()
def measure(shape: Shape, make: Callable[[nn.Module], Call], rows: list[int], layers: int, repeats: int) -> list[float]:
    """Milliseconds of the whole model for every number of rows, scaled up from ``layers`` layers."""
    torch.manual_seed(0)
    body = make(Layers(shape, layers).eval())
    inputs = [torch.randn(count, shape.hidden) for count in rows]
    if make in (torch_bf16, inductor_bf16, torchao_int8, torchao_int8_dynamic, torchao_int4):
        inputs = [x.bfloat16() for x in inputs]
    inner = [best_ms(partial(body, x), repeats) * shape.layers / layers for x in inputs]
    head = make(nn.Sequential(_linear(shape.vocab, shape.hidden)).eval())
    return [ms + best_ms(partial(head, x), repeats) for ms, x in zip(inner, inputs, strict=True)]


def run(options: argparse.Namespace) -> dict[str, Any]:
    rows = [int(count) for count in options.rows.split(",")]
    limits = measure_limits((torch.bfloat16, torch.float32), torch.device("cpu"))
    int8 = int8_rate()
    rates = limits.operations_per_second
    print(
        f"reads {limits.bytes_per_second / 1e9:.1f} GB/s; multiplies {rates['bfloat16'] / 1e9:.0f} GFLOP/s in "
        f"bfloat16, {rates['float32'] / 1e9:.0f} in float32, {int8 / 1e9:.0f} GOP/s in 8 bits"
    )
    found: dict[str, Any] = {"bench": "engines", "rows": rows, "limits": limits.as_dict(), "int8_rate": int8}
    found["models"] = {shape.name: dict(_table(shape, rows, limits, int8, options)) for shape in _chosen(options)}
    return found | {"provenance": provenance()}


def _chosen(options: argparse.Namespace) -> list[Shape]:
    return [shape for shape in SHAPES if options.model.lower() in shape.name.lower()]


def _table(
    shape: Shape, rows: list[int], limits: Limits, int8: float, options: argparse.Namespace
) -> Iterator[tuple[str, Any]]:
    print(f"\n{shape.name}, all linear layers: ms (multiple of the limit) for rows of {', '.join(map(str, rows))}")
    for weights in BITS:
        least = [limit_ms(shape, weights, count, limits, int8) for count in rows]
        print(f"  {'limit ' + weights:26}" + "".join(f"{ms:9.1f}        " for ms in least), flush=True)
    for name, (weights, make) in ways().items():
        if options.only and options.only not in name:
            continue
        try:
            times = measure(shape, make, rows, options.layers, options.repeats)
        except Exception as error:  # a way that fails is a result, too
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            print(f"  {name:26}{reason}", flush=True)
            yield name, {"error": reason}
            continue
        least = [limit_ms(shape, weights, count, limits, int8) for count in rows]
        cells = "".join(f"{ms:9.1f} ({ms / limit:4.1f}) " for ms, limit in zip(times, least, strict=True))
        print(f"  {name:26}{cells}", flush=True)
        yield name, {"ms": [round(ms, 3) for ms in times]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rows", default="1,8,16,32", help="rows at once; comma between")
    parser.add_argument("--layers", type=int, default=4, help="layers to run; times are scaled to the model")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument("--only", default="", help="only ways with this in their name")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(run(options)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
