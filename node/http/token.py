"""The token of the API, in a file of the data folder that only the owner can read."""

import re
from typing import Final

from ...transport.host.seam import Host
from .. import defaults
from ..folder import disk_errors, read_small
from ..settings.config import DataFolder

_VALID: Final = re.compile(r"[\x21-\x7e]{16,256}")


def load_or_create_token(host: Host, folder: DataFolder) -> str:
    """Return the token, and create it if there is none. Blocks.

    A token that other users could read, or that is too short, is replaced. Raises NodeError `disk`
    if the disk fails.
    """
    path = folder.api_token
    with disk_errors(folder):
        found = read_small(host, path)
        if found is not None and _VALID.fullmatch(found) and not host.files.mode(path) & 0o077:
            return found
        token = f"shoal-{host.entropy(defaults.API_TOKEN_BYTES).hex()}"
        host.files.write(path, f"{token}\n".encode(), mode=0o600)
        return token
