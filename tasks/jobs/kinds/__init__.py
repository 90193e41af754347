"""Kinds of jobs: what a row is, how it is done, and how the outputs of rows are put together."""
