"""Probes that measure how a NAT behaves. The same coroutines run on simulated and real NATs.

Public: `PROBES`, `KINDS` and `run` (`catalogue.py`), and `SimLab` (`lab.py`). `golden/` has the
recorded results of real kernels.

Imports `network/`.
"""
