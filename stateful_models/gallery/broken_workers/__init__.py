"""Workers that are wrong in one way each, made from the reference, and odd ones that are right."""
