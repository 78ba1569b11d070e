"""The five dashboards."""

from __future__ import annotations

from deploy.dashboards.handoff import HANDOFF
from deploy.dashboards.pools import POOLS
from deploy.dashboards.routing import ROUTING
from deploy.dashboards.scaling import SCALING
from deploy.dashboards.slo import OVERVIEW

DASHBOARDS = (OVERVIEW, POOLS, HANDOFF, ROUTING, SCALING)
