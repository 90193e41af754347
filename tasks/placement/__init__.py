"""Decides which layers of which model each node serves, from facts that all nodes share.

`plan.py` sees to it that all layers are served, by memory (ADR 0032). Where they are, `improve.py`
chooses by predicted speed (ADR 0057): `fleet.py` makes whole numbers of machines and links,
`predict.py` compares placements, `chains.py` and `optimise.py` find fast ones. No I/O. Public:
`plan`, `Placing`, `Facts`, `choose_model`, `PlanModel`, `PlanTerms`, `what_if`. Imports `costs/`
and the interface of `engine/`. Spec: docs/spec/membership.md.
"""
