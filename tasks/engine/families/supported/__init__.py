"""The families that this engine computes, one in each module. docs/families.md says how to add one.

Each module has `FAMILY`, whose `read` checks a config.json. Names and defaults are those of the
family's configuration class in transformers.

Public: `FAMILY` of each module. Imports only the modules at the top of the folders that contain it.
"""
