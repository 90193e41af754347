"""Settings of property tests: no deadline, because the machines that run them are shared."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
