"""Probes that find out how a NAT behaves: the same coroutines for simulated and real NATs.

Public: `PROBES`, `KINDS` and `run` (`catalogue.py`), and `SimLab` (`lab.py`). `golden/` has the
answers of real kernels.
"""
