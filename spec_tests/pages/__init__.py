"""The reference's mappings on trial, exhaustively: `python -m spec_tests.pages`."""
