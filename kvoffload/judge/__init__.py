"""The judge: what a policy is worth on real traffic, what it costs, and how sure that is."""
