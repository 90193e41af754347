"""Kinds of jobs: what a row is, how it is done, and how the outputs of rows are put together.

Public: `KINDS`, `Kind`, `Services`, and the rows of a file (`FileLine`, `lines_of`). Imports
`checking/`, `inference/`, `text/` and `transport/`.
"""
