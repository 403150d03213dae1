"""What runs beside the workers: Redis, Prometheus, Grafana. No part of the installed package."""
