"""Let pages of other sites call the APIs, where a setting names their origins."""

from flask import Flask, Response, request

from app.config import Settings

HEADERS = "Authorization, Content-Type, X-Api-Key, Last-Event-ID, anthropic-version"


def install(app: Flask, settings: Settings) -> None:
    """Preflights carry no keys, so they are answered before keys are checked. No cookies are allowed."""
    if not settings.origins:
        return

    @app.before_request
    def preflight() -> Response | None:
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        return Response(status=204) if is_preflight else None

    @app.after_request
    def allow(response: Response) -> Response:
        origin = request.headers.get("Origin", "")
        if origin in settings.origins or (origin and "*" in settings.origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"
            response.headers["Access-Control-Allow-Headers"] = request.headers.get(
                "Access-Control-Request-Headers", HEADERS
            )
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After, Location"
            response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            response.headers.add("Vary", "Origin")
        return response
