"""Learn together: load what the deployment knows before the first work, exchange from then on with the pulse."""

from app.store.shared_stats import Exchange, Learnt
from workers.deployment import Office
from workers.heartbeat import Pulse


def share(office: Office, pulse: Pulse, learnt: Learnt) -> None:
    """Keep `learnt` and the store together for this process's life. Raises StoreUnavailable."""
    exchange = Exchange(learnt, office.sums)
    exchange.beat()
    pulse.on_beat.append(exchange.beat)
    pulse.on_end.append(exchange.flush)
