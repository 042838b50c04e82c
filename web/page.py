"""GET /: the form. All it does, it does through the JSON API, in static/app.js."""

from flask import Blueprint, render_template

from workers.deployment import Deployment

DEFAULT_MAX_TOKENS = 256


def blueprint(deployment: Deployment) -> Blueprint:
    """The one page."""
    routes = Blueprint("page", __name__)
    settings = deployment.settings
    cap = min(settings.max_tokens, deployment.tokenizer.context_tokens - 1)

    @routes.get("/")
    def index() -> str:
        return render_template(
            "index.html",
            model=settings.model_name,
            max_tokens=min(DEFAULT_MAX_TOKENS, cap),
            max_tokens_cap=cap,
            needs_key=settings.keys is not None,
        )

    return routes
