"""How the deployment fares."""
