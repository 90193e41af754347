"""Report of a run as one HTML file: tables, and plots if matplotlib is installed.

Public: `page` (`page.py`), and `available` (`plots.py`).

Imports `scenario/`.
"""
