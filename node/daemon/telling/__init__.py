"""Messages of a running node to its owner on the terminal: offers, fetches, peers and answers.

Public: `FetchProgress`, `giving_lines`, `watch_job_disk`, `keep_journal`. Imports `settings/`,
`tasks/`, `state/`, `dht/` and `transport/`.
"""
