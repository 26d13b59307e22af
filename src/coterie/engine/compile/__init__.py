"""Training steps compiled whole, on a GPU as CUDA graphs; `policy` decides when, the rest is imported then."""
