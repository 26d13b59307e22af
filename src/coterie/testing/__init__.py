"""Contract tests for an algorithm, wherever it lives. In its own package they are one test:

    import pytest
    from coterie.testing import contracts

    @pytest.mark.parametrize("contract", contracts(Ditto), ids=str)
    def test_ditto(contract):
        contract()

`one_number_cohort` is for numbers that are computed by hand. pytest is not needed for either.
"""

from coterie.testing.contract import Contract, contracts
from coterie.testing.small import one_number_cohort

__all__ = ["Contract", "contracts", "one_number_cohort"]
