"""Messages about the settings of a node."""

from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ...defaults import SETTING_LIMIT
from .encoding import Ask, TextBound

Origin = Literal["default", "file", "option", "command"]
Applies = Literal["live", "start"]
Value = Annotated[str, TextBound(SETTING_LIMIT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingView:
    """A setting of a node.

    `text` is the value in force, and `next` the value from the next start on; None means the
    default, which `default` describes in words. `origin` says where the value comes from. `applies`
    says whether a change takes effect at once or at the next start.
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
    """All settings, and the path of the file that stores them. `running` says whether a daemon is
    running."""

    file: str
    running: bool
    settings: tuple[SettingView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetSettings(Ask[SettingsView, Never]):
    """Request for all settings."""

    op = "config"


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that was stored or removed. `applied` says whether the new value is already in
    force."""

    key: str
    text: str | None
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSetting(Ask[ChangedSetting, Never]):
    """Request to store a setting. If `text` is None or `default`, the setting is removed
    instead."""

    op = "config_set"
    key: Value
    text: Value | None = None
