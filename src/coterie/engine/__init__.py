"""Many local problems solved together: models as rows, batches, the solver, compiled steps, tables on disk."""
