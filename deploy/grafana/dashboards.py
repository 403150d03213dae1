"""All dashboards."""

from deploy.grafana.delivery import DELIVERY
from deploy.grafana.engine import ENGINE
from deploy.grafana.gateway import GATEWAY
from deploy.grafana.overview import OVERVIEW

DASHBOARDS = (OVERVIEW, ENGINE, DELIVERY, GATEWAY)
