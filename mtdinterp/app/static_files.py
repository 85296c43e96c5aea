"""The files of the page, and the plotly.js that comes with the installed plotly package."""

from importlib.resources import files
from pathlib import Path

import plotly
from fastapi import FastAPI
from fastapi.responses import Response

from mtdinterp.app.errors import NotFound
from mtdinterp.pages.page import style_sheet

MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".js": "text/javascript; charset=utf-8",
}
STATIC = {
    path.name: path.read_bytes()
    for path in (files("mtdinterp.app") / "static").iterdir()
    if Path(path.name).suffix in MEDIA_TYPES
}
"""All files that are ever served, read once: a request names one of them or gets a 404."""
ONE_DAY = 86400
NOT_CACHED = {"cache-control": "no-cache"}


def add_static_routes(app: FastAPI) -> None:
    """Serve the page, its scripts and styles, and plotly.js."""
    plotly_script = (files("plotly") / "package_data" / "plotly.min.js").read_bytes()
    plotly_headers = {"cache-control": f"max-age={ONE_DAY}", "etag": f'"{plotly.__version__}"'}

    @app.get("/")
    def page() -> Response:
        return _file("index.html")

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        return _file(name)

    @app.get("/page.css")
    def page_css() -> Response:
        return Response(style_sheet(), media_type=MEDIA_TYPES[".css"], headers=NOT_CACHED)

    @app.get("/plotly.js")
    def plotly_js() -> Response:
        return Response(plotly_script, media_type=MEDIA_TYPES[".js"], headers=plotly_headers)


def _file(name: str) -> Response:
    if name not in STATIC:
        raise NotFound("There is no such file.")
    media_type = MEDIA_TYPES[Path(name).suffix]
    return Response(STATIC[name], media_type=media_type, headers=NOT_CACHED)
