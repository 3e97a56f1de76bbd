"""The room of producers: options, batches, routing, one sender per partition."""
