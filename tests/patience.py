"""How long tests wait for what has to happen: only a hang takes that long, also on a slow machine that does much else."""

from __future__ import annotations

PATIENCE_S = 300.0
