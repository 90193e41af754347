"""The daemon's part in work that goes on without its client: jobs and fine-tunings.

Public: `Working` (`jobs.py`), which has the parts for jobs, and `TuningParts` (`tuning.py`), which
has those for fine-tunings. Imports the groups of parts in `daemon/` from which it is built, and
`settings/`.
"""
