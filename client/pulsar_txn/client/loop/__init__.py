"""The room of loops: transactional batches, pipelines and their lanes."""
