"""Flask: the page, the JSON API and the event streams."""
