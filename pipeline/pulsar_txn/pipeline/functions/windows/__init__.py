"""Windows: a function is called with several messages, which are acknowledged when they leave their last window."""
