"""Parts of `shoal job`: submitting, results, and fine-tunings that are jobs.

Imports what a command may: the modules of `cli/`, and commands beside this folder. `../job.py`
uses them.

Public: `submit`, `result`, `show_tuning`, `find_tuning`.
"""
