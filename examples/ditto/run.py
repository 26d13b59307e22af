"""Ditto beside FedAvg and Local, on digits under two labelings."""

import torch
from coterie_ditto import Ditto
from torch import nn

import coterie

torch.set_num_threads(1)
data = coterie.data.digits(clients=20, seed=0)
training = coterie.Training(learning_rate=0.1, batch_size=10)
for algorithm in (coterie.FedAvg(), coterie.Local(), Ditto(pull=0.1)):
    run = coterie.run(nn.Linear(64, 10), data, algorithm, rounds=10, training=training)
    print(algorithm.title(), run.summary["personal"]["accuracy"])
