"""Messages about the settings of a node."""

from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ...defaults import SETTING_LIMIT
from .encoding import Ask, Text

Origin = Literal["default", "file", "option", "command"]
Applies = Literal["live", "start"]
Value = Annotated[str, Text(SETTING_LIMIT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A setting. `text` is its value in force, None for the default; `next` that of the next start.

    `default` is in words. `applies`: whether a change applies at once or at the next start.
    """

    key: str
    text: str | None
    origin: Origin
    unit: str
    default: str
    applies: Applies
    next: str | None


@dataclass(frozen=True, slots=True)
class SettingsView:
    """All settings, and the path of their file. `running`: a daemon runs."""

    file: str
    running: bool
    settings: tuple[SettingView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSettings(Ask[SettingsView, Never]):
    """Ask for all settings."""

    op = "config"


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was stored or removed. `applied`: the new value is in force now."""

    key: str
    text: str | None
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSetting(Ask[ChangedSetting, Never]):
    """Store a setting; None or `default` removes it."""

    op = "config_set"
    key: Value
    text: Value | None = None
