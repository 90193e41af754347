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

# Guesses of a smaller model.
SAID_MOST, SAID_LEAST = 48, 4  # guesses ahead of the text, at most, and if few are right
SAID_REACHED = 0.05  # least probability with which the last of them is reached
SAID_PRIOR = 8.0  # weight, as a number of guesses, of half of them being right
SAID_USEFUL = 0.2  # part of them that must be right
SAID_BEHIND = 8  # tokens by which the smaller model may be behind before it reads them instead
SAID_SPEED = 8.0  # times as fast as the chain that the smaller model must be

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
