"""Moving bytes: plans of what goes where, and the devices that carry them out."""
