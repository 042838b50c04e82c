"""Break a deployment in every way while it serves, and check every request."""
