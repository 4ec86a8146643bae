"""Copies between a GPU and host memory, by torch, by the driver, or by a kernel."""
