""" "Introduce 0.01 % additional parameters" (Luo et al. 2022, slides), counted."""

import logging
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

from everyformer.layers import (
    BERT_BASE,
    Encoder,
    GainShare,
    add_urpe,
    gain_share,
)

PAPER = GainShare(gains=12_276, others=109_514_298)


def test_the_share_of_bert_base_is_that_of_the_slides() -> None:
    config = replace(BERT_BASE, encoding="ape+urpe")
    found = gain_share(Encoder(config, device="meta"))
    assert found == PAPER
    assert found.gains == 12 * (2 * 512 - 1)
    assert round(100 * found.share, 2) == 0.01, "per cent"
    apart = gain_share(Encoder(replace(config, share_encoding=False), device="meta"))
    assert apart == GainShare(12 * PAPER.gains, PAPER.others), "a table for each layer"


def test_add_urpe_reports_the_share(caplog: pytest.LogCaptureFixture) -> None:
    library: Any = import_module("transformers")
    with torch.device("meta"):
        model = library.BertForMaskedLM(library.BertConfig())
    assert gain_share(model) == GainShare(0, PAPER.others), "the head is tied: counted once"
    with caplog.at_level(logging.INFO, logger="everyformer.layers.add_urpe"):
        add_urpe(model, max_len=512)
    assert gain_share(model) == PAPER
    assert caplog.messages == [
        "URPE: 12,276 numbers beside 109,514,298 parameters, 0.0112 % more"
    ]


def test_a_model_without_parameters_has_no_share() -> None:
    assert gain_share(nn.Identity()).share == 0.0
