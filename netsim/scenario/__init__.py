"""Scenarios: experiments as TOML files, which are validated strictly and run."""
