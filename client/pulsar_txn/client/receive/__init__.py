"""The room of consumers and readers: messages, acknowledgements, redelivery, one receiver per partition."""
