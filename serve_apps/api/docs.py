"""/openapi.json and /docs: the same in a browser, its scripts served from here (nothing comes from outside), and the
limits.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import fastapi_offline
from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from acs.serve_apps.api import http
from acs.serve_apps.api.openapi import operations


def add_to(app: FastAPI) -> None:
    scripts = Path(fastapi_offline.__file__).parent / "static"
    app.mount("/docs/static", StaticFiles(directory=scripts), name="docs-static")
    app.add_route("/docs", _page, include_in_schema=False)
    app.add_route("/openapi.json", _openapi, include_in_schema=False)


def _schema(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for operation in operations():
            # As we wrote it: FastAPI turns bounds into floats, and 2**63 - 1 into 2**63.
            schema["paths"][operation.paths[0]][operation.method.lower()].update(operation.extra)
        components = schema.setdefault("components", {})
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "sk-acs-…"}}
        app.openapi_schema = schema
    return app.openapi_schema


async def _openapi(request: Request) -> Response:
    return await http.json_answer(request, _schema(request.app))


async def _page(request: Request) -> Response:
    limits = http.services_of(request).limits
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{value:,}</td><td>{escape(meaning)}</td></tr>"
        for name, value, meaning in limits.table()
    )
    table = f"<section style='margin:2em;font-family:sans-serif'><h2>Limits</h2><table>{rows}</table></section>"
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="acs",
        swagger_js_url="/docs/static/swagger-ui-bundle.js",
        swagger_css_url="/docs/static/swagger-ui.css",
        swagger_favicon_url="/docs/static/favicon.png",
    )
    html = bytes(page.body).decode().replace("</body>", table + "</body>")
    return HTMLResponse(html)
