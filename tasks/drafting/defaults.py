"""Constants of this package, with their units."""

# The drafter.
ORDERS = (8, 4, 2, 1)  # tokens of a context that are looked up, the longest first
LOOKED_AT = 12  # earlier places of one context that are compared
LONGEST_MATCH = 64  # tokens of a match that count
TABLE_BITS = 15  # of the number of slots in a table of contexts …
FIRST_BITS, MORE_BITS = 9, 3  # … at first, and more when a text has more tokens than slots
SLICE_TOKENS = 2048  # tokens that are added to an index without a pause: about 5 ms
HISTORY_TOKENS = 65_536  # of one user and model that are remembered, in two halves
HISTORIES = 32  # users and models whose histories are remembered

# The controller.
MEMORY = 0.95  # weight of earlier measurements when one more arrives
SURE = 0.98  # highest probability that a guess is right
PRIOR = 4.0  # weight, as a number of guesses, of what is assumed before any was verified
# Delay by one row, as a part of the round trip: at least, because nodes are shared, and at most
# before it is measured, so that good guesses are tried.
LEAST_COST, MOST_COST = 0.005, 0.25

# Windows.
WINDOW = 32  # positions of one window
AHEAD = 128  # guessed positions of a session that are in flight …
FLIGHT = 12  # … and windows; the first stage queues half of SPANS_WAITING (tasks/defaults.py)
KNOWN = 64  # earlier tokens of a session that the first stage compares windows with
