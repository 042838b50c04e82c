"""Show the state of the deployment: health, metrics, the dashboard and its history."""
