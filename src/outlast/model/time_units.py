"""An hour and a day in seconds. This module is pure."""

from __future__ import annotations

HOUR_S = 3600.0
DAY_S = 86_400.0
