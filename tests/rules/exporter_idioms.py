"""Models that PyTorch's exporters write for small modules, by the names in `seen_in` of rules."""

import tempfile
from pathlib import Path
from typing import Any

import onnx
import pytest


def exported(name: str) -> onnx.ModelProto:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    entry = _modules(torch)[name]
    module, inputs, options = entry() if callable(entry) else entry
    options = {"dynamo": False, **options}
    if not options["dynamo"]:
        names = [f"x{k}" for k in range(len(inputs))]
        inputs_by_name = dict(zip(names, inputs, strict=True))
        axes = {name: [0, 1] if x.ndim == 3 else [0] for name, x in inputs_by_name.items()}
        options = {"input_names": names, "dynamic_axes": axes, "opset_version": 17, **options}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        options["external_data"] = False
        torch.onnx.export(module.eval(), inputs, str(path), verbose=False, **options)
        return onnx.load(path)


def _modules(torch: Any) -> dict[str, Any]:
    """Return an entry for each name: a module, its inputs, and options of the exporter.

    An entry may also be a function that returns these three objects.
    """
    nn = torch.nn

    class Function(nn.Module):
        def __init__(self, function: Any, *modules: Any) -> None:
            super().__init__()
            self.function = function
            self.modules_ = nn.ModuleList(modules)

        def forward(self, *inputs: Any) -> Any:
            return self.function(*self.modules_, *inputs)

    class Conv1D(nn.Module):
        """The linear layer of GPT-2."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 24))
            self.bias = nn.Parameter(torch.randn(24))

        def forward(self, x: Any) -> Any:
            flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
            return flat.view((*x.size()[:-1], 24))

    class Adapted(nn.Module):
        """A layer with a low-rank adapter, computed as in peft."""

        def __init__(self, base: Any, a: Any, b: Any) -> None:
            super().__init__()
            self.base = base
            self.lora_A = a
            self.lora_B = b

        def forward(self, x: Any) -> Any:
            result = self.base(x)
            if x.dtype != self.lora_A.weight.dtype:
                x = x.to(self.lora_A.weight.dtype)
                return result + (self.lora_B(self.lora_A(x)) * 2.0).to(result.dtype)
            return result + self.lora_B(self.lora_A(x)) * 2.0

    def lora(base: Any) -> Any:
        return Adapted(base, nn.Linear(16, 4, bias=False), nn.Linear(4, 24, bias=False))

    def conv(channels: int, kernel: int, bias: bool = False) -> Any:
        return nn.Conv2d(4 if channels == 12 else 3, channels, kernel, bias=bias)

    batch = torch.randn(2, 5, 16)
    rows = torch.randn(5, 16)
    image = torch.randn(2, 3, 9, 9)
    vector = torch.randn(16)
    std = torch.tensor([0.2, 0.3, 0.4]).reshape(3, 1, 1)
    raw = {"dynamo": True, "optimize": False}
    fixed = {"dynamic_axes": {}}

    def heads(m: Any, x: Any) -> Any:
        return (m(x).view(x.size(0), x.size(1), 4, 4).transpose(1, 2) * 0.5).softmax(-1)

    def flattened(m: Any, x: Any) -> Any:
        flat = m(x).flatten(2).permute(0, 2, 1)
        return flat.reshape(x.size(0), 9, 9, 3).permute(0, 3, 1, 2) + x

    def gelu_new(m: Any, x: Any) -> Any:
        x = m(x)
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))

    def shuffled(x: Any) -> Any:
        """Shuffle channels as in ShuffleNet."""
        batch, channels, height, width = x.shape
        groups = x.reshape(batch * channels // 2, 2, height * width).permute(1, 0, 2)
        parts = groups.reshape(2, -1, channels // 2, height, width)
        return parts[0], parts[1].tanh()

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        """Apply a rotary position embedding to each head."""
        x = x.view(x.size(0), x.size(1), 2, 8).transpose(1, 2)
        return x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin

    def normalized(weight: Any, bias: Any, x: Any) -> Any:
        """Apply layer normalization with separate ops."""
        centered = x - x.mean(-1, keepdim=True)
        variance = centered.pow(2).mean(-1, keepdim=True)
        return centered / torch.sqrt(variance + 1e-5) * weight + bias

    def masked(x: Any, mask: Any) -> Any:
        kept = torch.where(mask, torch.where(mask, x, -1.0), 0.0)
        return kept, x.masked_fill(mask, 0.0).masked_fill(mask, -9.0)

    def split_and_joined(x: Any, y: Any) -> Any:
        joined = torch.cat([x, y.tanh()], 1)
        one, other = joined.split(16, 1)
        three = torch.cat([x, y, x], 1).chunk(3, 1)
        four = torch.cat([y, x, y, x], 1).chunk(4, 1)
        return one * other, joined[:, 16:], *three, *four

    def of_transformers(kind: str, past: bool = False, **sizes: Any) -> Any:
        """Return the entry of a small model of the transformers library.

        The inputs are token ids and a mask, and with ``past`` also the keys and values of a cache.
        """
        transformers = pytest.importorskip("transformers")
        config = getattr(transformers, f"{kind}Config")(vocab_size=99, **sizes)
        model = getattr(transformers, f"{kind}Model")(config)
        ids = torch.randint(1, 99, (2, 5))
        mask = torch.ones(2, 5, dtype=torch.int64)
        if not past:
            config._attn_implementation = "eager"
        axes = {name: {0: "batch", 1: "length"} for name in ("x0", "x1")}
        if not past:
            function = Function(lambda m, i, k: m(i, attention_mask=k)[0], model)
            return function, (ids, mask), {"dynamic_axes": axes}

        def step(m: Any, i: Any, k: Any, keys: Any, values: Any) -> Any:
            cache = transformers.DynamicCache()
            cache.update(keys, values, 0)
            outputs = m(i, attention_mask=k, past_key_values=cache)
            layer = outputs.past_key_values.layers[0]
            return outputs[0], layer.keys, layer.values

        axes = {
            "x0": {0: "batch", 1: "length"},
            "x1": {0: "batch", 1: "total"},
            "x2": {0: "batch", 2: "past"},
            "x3": {0: "batch", 2: "past"},
        }
        states = torch.randn(2, 4, 5, 16), torch.randn(2, 4, 5, 16)
        ids, mask = ids[:, :1], torch.ones(2, 6, dtype=torch.int64)
        return Function(step, model), (ids, mask, *states), {"dynamic_axes": axes}

    gpt = {"n_embd": 64, "n_head": 4, "n_positions": 64}
    relative = {
        "norm_rel_ebd": "layer_norm",
        "relative_attention": True,
        "pos_att_type": ["c2p", "p2c"],
        "position_buckets": 16,
    }
    deberta = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return {
        "gelu_new": (Function(gelu_new, nn.Linear(16, 8)), (rows,), {"dynamo": True}),
        "deberta_v2": lambda: of_transformers(
            "DebertaV2", intermediate_size=96, share_att_key=True, **deberta, **relative
        ),
        "gpt2_past": lambda: of_transformers("GPT2", past=True, n_layer=1, **gpt),
        "gptj": lambda: of_transformers("GPTJ", n_layer=2, rotary_dim=8, **gpt),
        "channel_shuffle": (Function(shuffled), (image[:1, :, :8, :8].repeat(1, 2, 1, 1),), fixed),
        "chunks": (Function(lambda x: torch.mul(*x.chunk(2, 1))), (rows,), raw),
        "classifier": (nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)), (rows,), {}),
        "concatenated": (Function(lambda x: torch.cat([x], 1).tanh()), (rows,), {}),
        "convolution": (nn.Conv2d(3, 4, 3, bias=False), (image,), raw),
        "flattened": (Function(flattened, nn.Tanh()), (image,), {}),
        "gelu": (nn.Sequential(nn.GELU("tanh"), nn.Conv2d(3, 4, 1)), (image,), {}),
        "heads": (Function(heads, nn.Linear(16, 16)), (batch,), {}),
        "logits": (Function(lambda x, y: x @ y.t() * 14.3), (rows, torch.randn(3, 16)), {}),
        "positions": (Function(lambda x: x.cumsum(1) * x - 1 + 2), (rows.sign().long(),), {}),
        "projection": (Function(lambda m, x: m(x) * 0.25, nn.Linear(16, 8)), (batch,), {}),
        "preprocessing": (Function(lambda m, x: m(x / std), conv(4, 3)), (image,), {}),
        "quick_gelu": (Function(lambda x: x * torch.sigmoid(1.702 * x)), (rows,), {}),
        "softplus": (nn.Softplus(), (rows,), raw),
        "lora_bare": (lora(nn.Linear(16, 24, bias=False)), (batch,), {}),
        "lora_conv": (
            Adapted(nn.Conv2d(3, 12, 3), conv(4, 3), nn.Conv2d(4, 12, 1, bias=False)),
            (image,),
            {},
        ),
        "lora_conv1d": (lora(Conv1D()), (batch,), {}),
        "lora_half": (lora(nn.Linear(16, 24).half()), (batch.half(),), {}),
        "lora_linear": (lora(nn.Linear(16, 24)), (batch,), {}),
        "lora_matrices": (lora(nn.Linear(16, 24)), (rows,), {"dynamo": True}),
        "joined_twice": (
            Function(lambda x: torch.cat([torch.cat([x, x.tanh()], 1)] * 2, 1)),
            (rows,),
            {},
        ),
        "largest_of_one": (Function(lambda x: torch.stack([x.tanh()]).amax(0)), (rows,), {}),
        "layer_norm": (nn.LayerNorm(16), (batch,), {"opset_version": 16}),
        "layer_norm_spelled_out": (
            Function(lambda x: normalized(vector, vector, x)),
            (batch,),
            {},
        ),
        "magnitude": (Function(lambda x: x.tanh().pow(1)), (rows,), {}),
        "expanded": (
            Function(lambda m, x: x @ (m.weight.expand(600, 600) * 2.0), nn.Embedding(1, 600)),
            (torch.randn(5, 600),),
            {},
        ),
        "masked": (Function(masked), (rows, rows > 0), fixed),
        "rms_norm": (
            Function(lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * vector),
            (batch,),
            {},
        ),
        "rotated": (Function(rotated), (batch, rows[:, :8], rows[:, 8:]), {}),
        "sdpa": (Function(nn.functional.scaled_dot_product_attention), (batch,) * 3, {}),
        "sizes": (
            Function(lambda x: x.reshape(x.size(0) * 2, x.size(1), 8)),
            (batch,),
            {},
        ),
        "split_and_joined": (Function(split_and_joined), (rows, rows), {}),
        "stacked": (Function(lambda x: torch.stack([x, x.tanh()], 1)[:, 1]), (rows,), {}),
        "transposed_rows": (
            Function(lambda x: x.transpose(1, 2).unsqueeze(1).permute(0, 3, 1, 2)),
            (batch,),
            {},
        ),
        "unbound": (Function(lambda x: torch.mul(*x[:, :2].unbind(1))), (image,), {}),
        "zeros": (Function(lambda x: (x.tanh() + torch.zeros(16)).softmax(-1)), (rows,), {}),
    }
