"""Lets SGLang 0.5.23 from its unmodified wheel run prefill and decode workers on a machine without a GPU.

:func:`install` runs at the start of every interpreter of the environment (``sglang_cpu_shim.pth``) and does nothing
until SGLang or torchvision is imported. :func:`register` is an SGLang plugin.
"""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest import mock


class _Before:
    """Calls ``prepare`` when the module ``name`` is about to be imported for the first time."""

    def __init__(self, name: str, prepare: Callable[[], None]) -> None:
        self.name = name
        self.prepare = prepare

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Prepare if it is the time; the ordinary finders load the module in any case."""
        if name == self.name:
            sys.meta_path.remove(self)
            self.prepare()
        return None


def install() -> None:
    """Prepare this interpreter for SGLang, once SGLang is imported."""
    if any(isinstance(finder, _Before) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _Before("torchvision", define_torchvision_operators))
    # The first module that SGLang loads, before any that looks for triton.
    sys.meta_path.insert(0, _Before("sglang.srt.environ", stand_in_for_triton))


def define_torchvision_operators() -> None:
    """Declare the two operators that torchvision expects its binary part to have declared.

    That part of PyPI's wheel links CUDA libraries and does not load here; no image ever reaches these operators.
    """
    import torch

    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def stand_in_for_triton() -> None:
    """Install the stand-in for triton that SGLang ships for Apple machines; triton itself would take 690 MB.

    SGLang decides by the platform whether it needs the stand-in, so it is shown an Apple machine for that moment.
    """
    if importlib.util.find_spec("triton") is not None:
        return
    import torch

    stubs = importlib.import_module("sglang._platform_stubs")
    mac = SimpleNamespace(platform="darwin", modules=sys.modules, meta_path=sys.meta_path)
    with (
        mock.patch.object(stubs, "sys", mac),
        mock.patch.object(stubs, "platform", SimpleNamespace(machine=lambda: "arm64")),
        mock.patch.object(stubs, "_patch_non_blocking"),  # it concerns Apple's device only
        mock.patch.object(torch.backends.mps, "is_available", return_value=True),
    ):
        stubs.install_platform_stubs()


def register() -> None:
    """Send KV by host-side page indices: the other way makes a CUDA event in the middle of a prefill."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVSender

    MooncakeKVSender.supports_host_tensor_indices = False
