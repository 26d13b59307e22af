import pytest
import torch
from coterie_ditto import Ditto
from torch import nn

import coterie
from coterie.protocol import Messages
from coterie.testing import Contract, contracts, one_number_cohort

torch.set_num_threads(1)  # the models are small: several threads take longer


@pytest.mark.parametrize("contract", contracts(Ditto), ids=str)
def test_contracts(contract: Contract) -> None:
    contract()


def test_two_rounds_by_hand() -> None:
    """One client, one point, the loss (w − 3)², and one step of rate 0.1 a round."""
    training = coterie.Training(learning_rate=0.1, batch_size=None, epochs=1)
    cohort = one_number_cohort(([1.0], [3.0]), training=training)
    algorithm = Ditto(pull=2.0)

    def train(w: float) -> tuple[float, float]:
        """The row that is sent, and v."""
        offer = Messages(torch.tensor([0]), {"centers": torch.tensor([[[w]]], dtype=torch.float64)})
        sent = algorithm.train(cohort, offer)
        return float(sent["row"]), float(algorithm.personal(cohort, offer).rows)

    # at first v = w = 1, so the proximal term is 0: 1 − 0.1·2·(1 − 3) = 1.4 for both
    assert train(1.0) == pytest.approx((1.4, 1.4))
    # then w = 2 and v = 1.4: 2 − 0.1·2·(2 − 3) = 2.2, and 1.4 − 0.1·(2·(1.4 − 3) + 2·(1.4 − 2)) = 1.84
    assert train(2.0) == pytest.approx((2.2, 1.84))


def test_the_global_model_is_that_of_fedavg() -> None:
    data = coterie.data.regressions(clients=6, seed=0)
    training = coterie.Training(learning_rate=0.01)
    ditto, fedavg = (
        coterie.run(nn.Linear(10, 1), data, algorithm, rounds=3, training=training, dtype=torch.float64)
        for algorithm in (Ditto(), coterie.FedAvg())
    )
    torch.testing.assert_close(ditto.centers[0].module.weight, fedavg.centers[0].module.weight)
