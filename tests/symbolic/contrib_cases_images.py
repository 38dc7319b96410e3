"""Windows over images and samples of them."""

from __future__ import annotations

import numpy as np
from contrib_case import BS, HW, SCALE, ZERO, Case, constant, f32, i32, u8

CASES = [
    Case(
        "FusedConv",
        [f32("B", 3, "H", "W"), f32(4, 3, 3, 3), f32(4)],
        {"activation": "Relu"},
        sizes=HW,
    ),
    Case(
        "FusedConv",
        [f32("B", 3, "H", "W"), f32(4, 3, 3, 2)],
        {"activation": "Relu", "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]},
        sizes=HW,
    ),
    Case(
        "FusedConv",
        [f32("B", 3, "H", "W"), f32(4, 3, 3, 3), None, f32("B", 4, "H", "W")],
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
        sizes=HW,
    ),
    Case(
        "GridSample",
        [f32("B", 3, "H", "W"), f32("B", 5, "S", 2)],
        sizes=[{**s, "S": 4} for s in HW],
    ),
    Case(
        "MaxpoolWithMask",
        [f32("B", 3, 8, 8), i32("B", 3, 8, 8)],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        sizes=HW,
    ),
    Case("Pad", [f32("B", 3, "H", "W"), constant([0, 0, 1, 2, 0, 0, 3, 4], np.int64)], sizes=HW),
    Case(
        "Pad",
        [f32("B", 3, "H", "W"), constant([0, 0, -1, -2, 0, 1, 0, 4], np.int64)],
        {"mode": "edge"},
        sizes=HW,
    ),
    Case("UnfoldTensor", [f32("B", 8)], {"dim": -1, "size": 3, "step": 2}, sizes=BS),
    Case(
        "QLinearAveragePool",
        [u8("B", 3, "H", "W"), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 2], "ceil_mode": 1, "strides": [2, 3], "pads": [1, 0, 1, 1]},
        sizes=HW,
    ),
    Case(
        "QLinearAveragePool",
        [u8("B", 3, "H", "W"), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 2], "auto_pad": "SAME_UPPER", "strides": [2, 3]},
        sizes=HW,
    ),
    Case(
        "QLinearConv",
        [u8("B", 3, "H", "W"), SCALE, ZERO, u8(4, 3, 3, 3), SCALE, ZERO, SCALE, ZERO],
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        sizes=HW,
    ),
    Case(
        "QLinearConv",
        [u8("B", 3, "H", "W"), SCALE, ZERO, u8(4, 3, 3, 3), SCALE, ZERO, SCALE, ZERO],
        {"pads": [1, 0, 2, 1], "strides": [2, 2], "dilations": [1, 2]},
        sizes=HW,
    ),
    Case(
        "FusedConv",
        [f32("B", 3, "H", "W"), f32(4, 3, 3, 3)],
        {"activation": "Relu", "strides": [2, 3], "auto_pad": "SAME_LOWER"},
        sizes=HW,
    ),
    Case(
        "FusedConv",
        [f32("B", 3, "H", "W"), f32(4, 3, 3, 3)],
        {"activation": "Relu", "strides": [2, 3], "auto_pad": "VALID"},
        sizes=HW,
    ),
    Case("UnfoldTensor", [f32("B", 9)], {"dim": 1, "size": 3, "step": 2}, sizes=BS),
    Case(
        "QLinearConv",
        [u8("B", 3, "H", "W"), SCALE, ZERO, u8(4, 3, 3, 3), SCALE, ZERO, SCALE, ZERO],
        sizes=HW,
    ),
    Case(
        "QLinearConv",
        [
            u8("B", "H", "W", 3),
            SCALE,
            ZERO,
            constant(np.ones((4, 3, 3, 3)), np.uint8),
            SCALE,
            ZERO,
            SCALE,
            ZERO,
        ],
        {"channels_last": 1},
        sizes=HW,
    ),
    Case(
        "QLinearAveragePool",
        [u8("B", 3, "H", "W"), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 3]},
        sizes=HW,
    ),
    Case(
        "QLinearAveragePool",
        [u8("B", "H", "W", 3), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 3], "channels_last": 1},
        sizes=HW,
    ),
    Case(
        "QLinearAveragePool",
        [u8("B", "H", "W", 3), SCALE, ZERO, SCALE, ZERO],
        {"kernel_shape": [3, 2], "channels_last": 1, "ceil_mode": 1, "strides": [2, 2]},
        sizes=HW,
    ),
    Case("QLinearGlobalAveragePool", [u8("B", 3, "H", "W"), SCALE, ZERO, SCALE, ZERO], sizes=HW),
    Case(
        "QLinearGlobalAveragePool",
        [u8("B", "H", "W", 3), SCALE, ZERO, SCALE, ZERO],
        {"channels_last": 1},
        sizes=HW,
    ),
]
