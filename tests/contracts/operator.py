"""What every operator must do beside its reference; a subclass buys the whole battery.

The reference is dense and in plain torch; in float64 the two agree to rounding.
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from tests.ops.operators import Operator, gap, slopes
from torch import Tensor
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

EXACT = 1e-11
"""In float64, relative to the largest number."""

SINGLE = 2e-5
"""In float32."""


def one_argument(function: Any, tensors: Any, number: int) -> Callable[[Tensor], Tensor]:
    def called(x: Tensor) -> Tensor:
        return function(*tensors[:number], x, *tensors[number + 1 :])

    return called


def number(function: Any) -> Callable[..., Tensor]:
    return lambda *x: function(*x).sin().sum()


def last_first(function: Any) -> Callable[[Tensor, list[Tensor]], Tensor]:
    return lambda last, rest: function(*rest, last)


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: grad(number(f), tuple(range(len(x))))(*x),
    "grad of grad": lambda f, x: grad(
        lambda *y: grad(number(f))(*y).square().sum(), tuple(range(len(x)))
    )(*x),
    "jacrev": lambda f, x: jacrev(f, tuple(range(len(x))))(*x),
    "jvp": lambda f, x: jvp(f, tuple(x), tuple(y.cos() for y in x)),
    "jvp of grad": lambda f, x: jvp(grad(number(f)), tuple(x), tuple(y.cos() for y in x)),
    "grad of jvp": lambda f, x: grad(
        lambda *y: jvp(f, y, tuple(z.cos() for z in x))[1].square().sum()
    )(*x),
    "vjp": lambda f, x: (lambda y: y[1](y[0].cos()))(vjp(f, *x)),
    "vmap": lambda f, x: vmap(f)(*copies(x)),
    "vmap by one": lambda f, x: vmap(one_argument(f, x, len(x) - 1))(copies(x)[-1]),
    "vmap at the end": lambda f, x: vmap(f, in_dims=-1, out_dims=1)(
        *(y.movedim(0, -1) for y in copies(x))
    ),
    "vmap of grad": lambda f, x: vmap(grad(number(f), tuple(range(len(x)))))(*copies(x)),
    "vmap of grad by the last": lambda f, x: vmap(
        grad(last_first(number(f))), in_dims=(None, 0)
    )(x[-1], copies(x)[:-1]),
    "vmap of vmap": lambda f, x: vmap(vmap(f))(*(copies(copies(x)))),
    "hessian": lambda f, x: [
        hessian(number(one_argument(f, x, k)))(y) for k, y in enumerate(x)
    ],
}


def copies(x: Any) -> list[Tensor]:
    return [torch.stack([y, y.flip(-1) * 0.5, y.sin()]) for y in x]


def normal(*shape: int) -> Tensor:
    random = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def laid_out(layout: str, b: int, h: int, n: int, d: int) -> Tensor:
    match layout:
        case "heads inside":
            return normal(b, n, h, d).transpose(1, 2)
        case "one of a batch":
            return normal(1, n, h, d).transpose(1, 2)
        case "one head":
            return normal(b, n, 1, d).transpose(1, 2)
        case "tokens last":
            return normal(b, h, d, n).mT
        case "every second":
            return normal(b, h, 2 * n, 2 * d)[:, :, ::2, 1::2]
        case "one for all":
            return normal(1, 1, n, d).expand(b, h, n, d)
        case _:
            return normal(b, h, n, d)


LAYOUTS = [
    "contiguous", "heads inside", "one of a batch", "one head", "tokens last",
    "every second", "one for all",
]  # fmt: skip
"""As layers and users have them: (b, h, n, d), of which memory has another idea."""


def as_laid_out(layout: str, like: Tensor) -> Tensor:
    """The same numbers where memory has another idea of them."""
    match layout:
        case "heads inside" if like.dim() == 4:
            return like.transpose(1, 2).contiguous().transpose(1, 2)
        case "tokens last":
            return like.mT.contiguous().mT
        case "every second":
            wide = like.new_full((*like.shape[:-1], 2 * like.shape[-1]), torch.nan)
            wide[..., 1::2] = like
            return wide[..., 1::2]
        case _:
            return like.clone()


class OperatorContract:
    """An operator and its reference on several arguments.

    Attributes:
        small: Small enough for finite differences and Hessians.
        infinite: One with a bias of -inf, which has no neighbours; its name in `small`.
        longer: Where another path or several steps are taken.
        interpreted: For the Triton kernels, which are slow without a GPU.
    """

    small: ClassVar[dict[str, Operator]]
    longer: ClassVar[dict[str, Operator]]
    interpreted: ClassVar[Operator]
    infinite: ClassVar[str | None] = None

    def custom_ops(self, layout: str) -> Iterator[tuple[Any, tuple[Any, ...]]]:
        """The custom ops behind the operator, forward and backward first."""
        raise NotImplementedError

    def use_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the operator run its Triton kernels on the CPU."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """One test for each set of arguments, each layout, each transform."""
        cls, wanted = metafunc.cls, metafunc.fixturenames
        smooth = [name for name in cls.small if name != cls.infinite]
        for name, values in {
            "any_case": {**cls.small, **{f"longer {k}": v for k, v in cls.longer.items()}},
            "smooth": {name: cls.small[name] for name in smooth},
            "layout": dict(zip(LAYOUTS, LAYOUTS, strict=True)),
            "transform": TRANSFORMS,
        }.items():
            if name in wanted:
                metafunc.parametrize(name, values.values(), ids=list(values))

    def test_outputs_and_three_orders(self, any_case: Operator) -> None:
        """Gradients, Hessian-vector products, and one order more."""
        short = any_case in self.small.values()
        assert gap(any_case.fast(*any_case.tensors), any_case.plain(*any_case.tensors)) <= (
            EXACT
        )
        for order in (1, 2, 3) if short else (1, 2):
            found = slopes(any_case.fast, any_case.leaves(), order)
            wanted = slopes(any_case.plain, any_case.leaves(), order)
            assert gap(found, wanted) <= EXACT
            assert any(x.abs().max() > 0 for x in wanted), "there is something to compare"

    def test_finite_differences(self, smooth: Operator) -> None:
        """First and second derivatives by all arguments, reverse and forward."""
        assert gradcheck(
            smooth.fast, smooth.leaves(), fast_mode=True, check_forward_ad=True
        )
        assert gradgradcheck(smooth.fast, smooth.leaves(), fast_mode=True)

    def test_torch_func(self, smooth: Operator, transform: Any) -> None:
        tensors = list(smooth.tensors)
        found, wanted = (transform(f, tensors) for f in (smooth.fast, smooth.plain))
        assert gap(found, wanted) <= EXACT

    def test_a_tangent_on_the_way_back(self) -> None:
        """A backward pass inside forward mode, of a forward pass outside of it."""
        case = next(iter(self.small.values()))
        found: list[Any] = []
        for function in (case.fast, case.plain):
            leaves = case.leaves()
            out = function(*leaves)
            with forward_ad.dual_level():
                upstream = forward_ad.make_dual(out.detach().cos(), out.detach().sin())
                gradients = torch.autograd.grad(out, leaves, upstream)
                pairs = [forward_ad.unpack_dual(x) for x in gradients]
                assert all(pair.tangent is not None for pair in pairs)
                found.append([(pair.primal, pair.tangent) for pair in pairs])
        assert gap(*found) <= EXACT

    def test_layouts(self, layout: str) -> None:
        """Strides are respected: the same numbers give the same results."""
        for case in self.longer.values():
            leaves = [as_laid_out(layout, x).requires_grad_() for x in case.tensors]
            wanted = slopes(case.plain, case.leaves(), 1)
            assert gap(slopes(case.fast, leaves, 1), wanted) <= EXACT
            given = case.leaves()
            of_sums = [  # whose gradient is a number, expanded
                torch.autograd.grad(function(*tensors).sum(), tensors)
                for function, tensors in ((case.fast, leaves), (case.plain, given))
            ]
            assert gap(*of_sums) <= EXACT

    def test_two_runs_have_equal_bits(self) -> None:
        for case in self.longer.values():
            one, two = (slopes(case.fast, case.leaves(torch.float32), 1) for _ in "ab")
            assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))

    def test_every_argument_matters(self) -> None:
        """Negative control: the reference with one argument changed is far away."""
        case = next(iter(self.small.values()))
        for k, tensor in enumerate(case.tensors):
            given = list(case.tensors)
            given[k] = tensor.flip(-1) + 0.5 * tensor.cos()
            assert gap(case.fast(*case.tensors), case.plain(*given)) > 1e-3, k

    @pytest.mark.compile
    def test_fake_tensors_and_schemas(self, layout: str) -> None:
        """What `torch.compile` is told of the custom ops is what they do."""
        tests = ("test_schema", "test_autograd_registration", "test_faketensor")
        for k, (op, given) in enumerate(self.custom_ops(layout)):
            slow = layout == "heads inside" and k < 2  # by tracing, forward and backward
            more = ("test_aot_dispatch_dynamic",) if slow else ()
            torch.library.opcheck(op, given, test_utils=(*tests, *more))

    @pytest.mark.skipif(
        torch.cuda.is_available(), reason="kernels are interpreted on the CPU"
    )
    def test_kernels_have_the_same_derivatives(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("triton")
        self.use_kernels(monkeypatch)
        case, change = self.interpreted, TRANSFORMS["vmap of grad"]
        wanted = slopes(case.plain, case.leaves(), 2)
        assert all(x.any() for x in wanted), "every query hears several keys"
        assert gap(slopes(case.fast, case.leaves(torch.float32), 2), wanted) <= SINGLE
        x = [y.float() for y in case.tensors]
        exact = change(case.plain, list(case.tensors))
        assert gap(change(case.fast, x), exact) <= SINGLE
