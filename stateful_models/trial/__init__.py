"""One target on trial in a process of its own, on a clock of its own."""
