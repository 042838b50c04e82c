"""Learn together: load what the deployment knows before the first work, exchange from then on with the heartbeat."""

from app.store.shared_stats import SharedStats, StatsExchange
from workers.deployment import Deployment
from workers.heartbeat import Heartbeat


def share(deployment: Deployment, heartbeat: Heartbeat, learnt: SharedStats) -> None:
    """Keep `learnt` and the store together for this process's life. Raises StoreUnavailable."""
    exchange = StatsExchange(learnt, deployment.shared_stats)
    exchange.beat()
    heartbeat.on_beat.append(exchange.beat)
    heartbeat.on_end.append(exchange.flush)
