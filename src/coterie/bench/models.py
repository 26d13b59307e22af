"""Models of a size between the MLP and the papers' own, as many programs for phones have."""

from __future__ import annotations

from torch import nn


def small_cnn() -> nn.Module:
    """Of 28x28 pictures; 582,026 parameters."""
    layers = [
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def small_cifar_cnn() -> nn.Module:
    """Of 3x32x32 pictures, with batch norm and dropout; 537,198 parameters."""
    first = [nn.Conv2d(3, 32, 5), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Dropout(0.25), nn.Linear(1600, 300), nn.ReLU(), nn.Dropout(0.5), nn.Linear(300, 10)]
    return nn.Sequential(*first, *second, nn.Flatten(), *dense)
