"""Serve GET /, the page with the form; static/app.js does the rest through the JSON API."""

from flask import Blueprint, render_template

from web.drafter_list import drafter_list
from workers.deployment import Deployment

DEFAULT_MAX_TOKENS = 256


def blueprint(deployment: Deployment) -> Blueprint:
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
            drafters=drafter_list(settings),
        )

    return routes
