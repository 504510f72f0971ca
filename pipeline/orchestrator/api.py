"""Requests runs from a Dagster instance over its GraphQL API.

The client uses plain HTTP and does not import Dagster, so commands that use it work from any machine.
"""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson
import requests
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from tidemark.pipeline.errors import InvalidSettings, ServiceFailed
from tidemark.pipeline.machine import is_loopback
from tidemark.pipeline.orchestrator.names import PIPELINE, pipeline_tag
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.settings_sections import DagsterSettings

HEADERS = "TIDEMARK_DAGSTER_HEADERS"
"""Environment variable with additional request headers, one `Name: value` per line. Set it if Dagster requires a
login."""

CONNECT_SECONDS, ANSWER_SECONDS = 10, 60
"""Timeouts for connecting, and for receiving each part of the response. ANSWER_SECONDS is long because Dagster may have
to load a code location before it responds."""

PART_BYTES, MOST_BYTES = 1 << 16, 16 << 20
"""Number of bytes that are read at a time, and maximum number of bytes that are read per response."""

REFUSALS = (401, 403)

QUOTED = 300
"""Maximum number of characters of external text that an error message quotes."""

A_HEADER = re.compile(r"([A-Za-z0-9\-]+): *([\x21-\x7e][\x20-\x7e]*)")

LOCATION = """\
query Location($location: String!) {
  locationStatusesOrError { ... on WorkspaceLocationStatusEntries { entries { name } } }
  workspaceLocationEntryOrError(name: $location) {
    ... on PythonError { message }
    ... on WorkspaceLocationEntry {
      locationOrLoadError {
        ... on PythonError { message }
        ... on RepositoryLocation { repositories { name pipelines { name tags { key value } } } }
      }
    }
  }
}
"""

LAUNCH = """\
mutation Launch($run: ExecutionParams!) {
  launchRun(executionParams: $run) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on RunConfigValidationInvalid { errors { message } }
    ... on Error { message }
  }
}
"""


class DagsterApi:
    """A client of Dagster's GraphQL API. A failed request raises ServiceFailed, which says what to do."""

    def __init__(self, settings: DagsterSettings) -> None:
        """Read the request headers. Raises InvalidSettings (see `headers_of_the_environment`)."""
        self._ui, self._location = settings.ui, settings.location
        self._is_here = is_loopback(urlsplit(self._ui).hostname or "")
        self._headers = headers_of_the_environment(self._ui)

    def launch(self, job: str, lake: str, tags: Mapping[str, str]) -> str:
        """Request one run of `job`, with `tags` in addition to the job's own tags, and return the run's address in
        Dagster's UI. Raises ServiceFailed if Dagster does not answer, or refuses the run.

        The job is found by its tag for `lake`, because its name may have a prefix. A request whose response is lost is
        not repeated, because the run may already exist.
        """
        repository, name = self._found(job, lake)
        selector = {"repositoryLocationName": self._location, "repositoryName": repository, "pipelineName": name}
        marks = [{"key": key, "value": value} for key, value in tags.items()]
        run = {"selector": selector, "mode": "default", "executionMetadata": {"tags": marks}}
        answer = self._ask(LAUNCH, {"run": run})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            whys = [answer.get("message"), *(error["message"] for error in answer.get("errors", ()))]
            why = "; ".join(_quoted(text) for text in whys if text)
            raise ServiceFailed(f"Dagster did not accept the run of {job}: {answer['__typename']}: {why}")
        return f"{self._ui}/runs/{answer['run']['runId']}"

    def _found(self, job: str, lake: str) -> tuple[str, str]:
        mark = {"key": PIPELINE, "value": pipeline_tag(lake)}
        answer = self._ask(LOCATION, {"location": self._location})
        if (entry := answer["workspaceLocationEntryOrError"]) is None:
            entries = answer["locationStatusesOrError"].get("entries", ())
            names = ", ".join(sorted(one["name"] for one in entries)) or "none"
            raise ServiceFailed(
                f"Dagster at {self._ui} has no code location {self._location!r}; it has: {_quoted(names)}. Set "
                "dagster.location to the one with tidemark's jobs"
            )
        location = entry.get("locationOrLoadError", entry)  # it is null while the location loads
        if location is None or "repositories" not in location:
            why = _quoted((location or {}).get("message") or "it is still loading")
            raise ServiceFailed(
                f"the code location {self._location!r} of Dagster at {self._ui} is not loaded: {why}. "
                "Start or restart its code server (`tidemark up` starts it), and try again"
            )
        for repository in location["repositories"]:
            for one in sorted(repository["pipelines"], key=lambda one: len(one["name"])):  # other names may end alike
                is_it = one["name"] == job or one["name"].endswith(f"_{job}")
                if is_it and mark in one["tags"]:
                    return repository["name"], one["name"]
        raise ServiceFailed(
            f"the code location {self._location!r} of Dagster at {self._ui} has no job {job!r} for the lake "
            f"{lake}. Set dagster.location to the location that has this job, and run the command with the settings "
            "file of that location"
        )

    def _ask(self, query: str, variables: Mapping[str, Any]) -> Any:
        status, body = self._post({"query": query, "variables": variables})
        try:
            answer = orjson.loads(body)
            errors = "; ".join(error["message"] for error in answer.get("errors") or ())
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ServiceFailed(
                f"the server at {self._ui}/graphql is not Dagster's GraphQL (status {status}): {_quoted(body)}. Set "
                "dagster.url to the address of Dagster's UI"
            ) from error
        if errors or not isinstance(answer.get("data"), dict):
            raise ServiceFailed(
                f"Dagster at {self._ui} could not answer the query: {_quoted(errors or body)}. If its "
                "version differs from the one in constraints.txt, install that version and try again"
            )
        return answer["data"]

    def _post(self, query: Mapping[str, Any]) -> tuple[int, bytes]:
        """Send a GraphQL query. Returns the response's status, and its body up to about MOST_BYTES."""
        proxies = dict.fromkeys(("http", "https", "all"), "") if self._is_here else None  # no proxy
        try:
            with requests.post(
                f"{self._ui}/graphql",
                json=query,
                headers=self._headers,
                auth=lambda request: request,  # else requests would send a login that it finds in ~/.netrc
                timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                allow_redirects=False,  # a redirect could send the headers to another server
                proxies=proxies,
                stream=True,
            ) as response:
                body = b""
                for part in response.iter_content(PART_BYTES):
                    body += part
                    if len(body) > MOST_BYTES:
                        break
        except requests.RequestException as error:
            was_connected = isinstance(next(iter(error.args), None), (ProtocolError, ReadTimeoutError))
            if was_connected and "BadStatusLine" not in str(error):  # the answer of a server with another protocol
                raise ServiceFailed(
                    f"Dagster at {self._ui} did not answer: {_quoted(str(error))}. The run may exist: "
                    f"check {self._ui}/runs before you try again"
                ) from error
            raise ServiceFailed(
                f"no Dagster answers at {self._ui}: {_quoted(str(error))}. Start it with `tidemark up`, or set "
                "dagster.url to the address of the Dagster that runs this pipeline, and try again"
            ) from error
        if response.is_redirect or response.status_code in REFUSALS:
            raise ServiceFailed(
                f"Dagster at {self._ui} refused with {response.status_code}: "
                f"{_quoted(response.headers.get('location') or body)}. If it requires a login, set ${HEADERS}"
            )
        return response.status_code, body


def headers_of_the_environment(ui: str) -> dict[str, str]:
    """Return the headers for requests to `ui`, as set in the environment variable HEADERS. Raises InvalidSettings if
    they are malformed, or would be sent unencrypted to another machine. The error does not quote the headers."""
    headers = {}
    for line in filter(str.strip, os.environ.get(HEADERS, "").splitlines()):
        if (found := A_HEADER.fullmatch(line.strip())) is None:
            raise InvalidSettings(f"${HEADERS} cannot be read: write one header per line, as Name: value")
        headers[found[1]] = found[2]
    named = urlsplit(ui)
    if headers and named.scheme != "https" and not is_loopback(named.hostname or ""):
        raise InvalidSettings(
            f"${HEADERS} would be sent unencrypted to {ui}: set dagster.url to an https address, or unset the variable"
        )
    return headers


def _quoted(text: str | bytes) -> str:
    whole = text.decode(errors="replace") if isinstance(text, bytes) else text
    return printable(" ".join(whole.split()))[:QUOTED]
