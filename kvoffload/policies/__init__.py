"""Cache policies: the interface, the factory, and one policy a file."""
