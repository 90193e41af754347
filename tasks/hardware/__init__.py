"""The hardware of this machine: its devices, the probe that measures their speed, and the stored
result.

Public: `Hardware`, `Device`, `Report`, `look`. Imports only `engine/` of the other rooms.
"""
