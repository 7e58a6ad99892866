"""Serves to the page what a run's event file holds. Imports nothing heavy, for TensorBoard imports it as it starts."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboard import errors, plugin_util
from tensorboard.backend import http_util
from tensorboard.data.provider import RunTagFilter
from tensorboard.plugins import base_plugin
from werkzeug import Request, Response

from vit.inspection.tab import PLUGIN, TAG

STEPS = 1000  # more than a run writes
PAGE = {"/index.js": "text/javascript", "/view.js": "text/javascript", "/tab.css": "text/css"}


class AttentionPlugin(base_plugin.TBPlugin):
    """Routes: runs, header?run=&step=, blob?run=&step=&index=, and the files of the page."""

    plugin_name = PLUGIN

    def __init__(self, context: base_plugin.TBContext) -> None:
        self.data = context.data_provider

    def get_plugin_apps(self) -> dict[str, Callable]:
        answers: dict[str, Callable[[Request], Response]]
        answers = {name: functools.partial(_file, name, kind) for name, kind in PAGE.items()}
        answers |= {"/runs": self._runs, "/header": self._header, "/blob": self._blob}
        return {route: Request.application(_only_get(answer)) for route, answer in answers.items()}

    def is_active(self) -> bool:
        return False  # what TensorBoard knows of the data suffices

    def frontend_metadata(self) -> base_plugin.FrontendMetadata:
        return base_plugin.FrontendMetadata(es_module_path="/index.js", tab_name="Attention")

    def _sequences(self, request: Request, runs: list[str] | None = None) -> Mapping[str, Mapping[int, Any]]:
        """Of each run with maps, its steps and their blobs' references."""
        found = self.data.read_blob_sequences(
            plugin_util.context(request.environ),
            experiment_id=plugin_util.experiment_id(request.environ),
            plugin_name=PLUGIN,
            downsample=STEPS,
            run_tag_filter=RunTagFilter(runs=runs, tags=[TAG]),
        )
        return {run: {datum.step: datum.values for datum in tags[TAG]} for run, tags in found.items()}

    def _runs(self, request: Request) -> Response:
        context = plugin_util.context(request.environ)
        runs = self.data.list_runs(context, experiment_id=plugin_util.experiment_id(request.environ))
        steps = self._sequences(request)
        listed = [{"run": name, "steps": sorted(steps.get(name, {}))} for name in sorted(run.run_name for run in runs)]
        return http_util.Respond(request, listed, "application/json")

    def _header(self, request: Request) -> Response:
        return http_util.Respond(request, self._read(request, 0), "application/json")

    def _blob(self, request: Request) -> Response:
        content = self._read(request, _number(request, "index"))
        kind = "image/png" if content.startswith(b"\x89PNG") else "application/octet-stream"
        return http_util.Respond(request, content, kind)

    def _read(self, request: Request, index: int) -> bytes:
        run, step = request.args.get("run", ""), _number(request, "step")
        steps = self._sequences(request, [run]).get(run)
        if steps is None:
            raise errors.NotFoundError(f"run {run!r} has no attention maps")
        if step not in steps:
            raise errors.NotFoundError(f"run {run!r} has no maps at step {step}; it has {sorted(steps)}")
        if not 0 <= index < len(steps[step]):
            raise errors.NotFoundError(f"index {index} is not between 0 and {len(steps[step]) - 1}")
        return self.data.read_blob(plugin_util.context(request.environ), blob_key=steps[step][index].blob_key)


def _only_get(answer: Callable[[Request], Response]) -> Callable[[Request], Response]:
    def checked(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            headers = [("Allow", "GET")]
            return http_util.Respond(request, "only GET is answered", "text/plain", code=405, headers=headers)
        return answer(request)

    return checked


def _file(name: str, kind: str, request: Request) -> Response:
    return http_util.Respond(request, Path(__file__).with_name(name[1:]).read_bytes(), kind)


def _number(request: Request, name: str) -> int:
    text = request.args.get(name, "")
    if not (text.isascii() and text.isdecimal()):
        raise errors.InvalidArgumentError(f"{name}={text!r} is no whole number")
    return int(text)
