"""Products with quantised matrices, against matrices that the test dequantises itself."""

import pytest
import torch

from shoal.tasks.engine.compute import products
from shoal.tasks.engine.compute.products import Layout, Quantised, linear_of_quantised


def quantised(layout: Layout, outputs: int, inputs: int, group: int = 32) -> Quantised:
    """A random quantised matrix."""
    torch.manual_seed(outputs * inputs)
    scale = (torch.rand(outputs, inputs // group) * 0.02 + 0.001).half()
    if layout == "int8":
        return Quantised("int8", torch.randint(-128, 128, (outputs, inputs)).to(torch.int8), scale)
    q = torch.randint(0, 256, (outputs, inputs // 2)).to(torch.uint8)
    return Quantised("int4", q, scale, (-8 * scale.float()).half())


def reference(weight: Quantised) -> torch.Tensor:
    """The matrix in float32, one weight at a time as docs/spec says."""
    rows = torch.empty(weight.outputs, weight.inputs)
    for n in range(weight.outputs):
        for k in range(weight.inputs):
            group = k // weight.group
            scale = float(weight.scale[n, group])
            if weight.minimum is None:
                rows[n, k] = float(weight.q[n, k]) * scale
            else:
                byte = int(weight.q[n, group * 16 + k % 16])
                nibble = byte >> 4 if k % 32 >= 16 else byte & 15
                rows[n, k] = nibble * scale + float(weight.minimum[n, group])
    return rows


@pytest.mark.parametrize(("layout", "group"), [("int8", 32), ("int8", 16), ("int4", 32)])
def test_a_tiled_product_is_that_of_the_dequantised_matrix(
    layout: Layout, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_TILE", 5 * 64)  # tiles of 5 outputs, the last one smaller
    weight, bias = quantised(layout, 12, 64, group), torch.randn(12)
    x = torch.randn(3, 64)
    expected = x @ reference(weight).T + bias
    product = products.QuantisedLinear(weight, bias)
    torch.testing.assert_close(product(x), expected, rtol=1e-5, atol=1e-5)
    assert product(x[:0]).shape == (0, 12)


def test_tensors_that_do_not_fit_the_layout_are_refused() -> None:
    weight = quantised("int4", 8, 64)
    q, scale, minimum = weight.q, weight.scale, weight.minimum
    assert minimum is not None
    with pytest.raises(ValueError, match="minimum"):
        linear_of_quantised("int4", q, scale, None, None)
    with pytest.raises(ValueError, match=r"int4 has torch\.int8"):
        linear_of_quantised("int4", q.to(torch.int8), scale, minimum, None)
    with pytest.raises(ValueError, match="groups of 64"):
        linear_of_quantised("int4", q, scale[:, :1], minimum[:, :1], None)
    with pytest.raises(ValueError, match="do not fit"):
        linear_of_quantised("int4", q, scale[:4], minimum[:4], None)
    with pytest.raises(ValueError, match="another shape"):
        linear_of_quantised("int4", q, scale, minimum[:, :1], None)
