"""Settings of local training."""

from __future__ import annotations

from coterie.engine.training import Training


def test_rates_over_the_rounds() -> None:
    def rates(**settings) -> list[float]:
        training = Training(learning_rate=1.0, **settings)
        return [round(training.rate_at(t, 4), 4) for t in range(4)]

    assert rates() == [1, 1, 1, 1]
    assert rates(schedule="exponential", decay=0.5) == [1, 0.5, 0.25, 0.125]
    assert rates(schedule="step", decay=0.5, every=2) == [1, 1, 0.5, 0.5]
    assert rates(schedule="cosine") == [1, 0.8536, 0.5, 0.1464]
