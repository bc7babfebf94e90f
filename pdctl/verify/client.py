"""Asking engines over HTTP, with a time limit for everything."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pdctl.errors import TransportError
from pdctl.vllm.metrics import Metrics, parse_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_QUICK_S = 10.0


class AskFailed(Exception):
    """An engine did not answer, or not with 200; `str()` says what for people, `status` is the HTTP status if there was one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One completion."""

    tokens: tuple[int, ...]
    data: Mapping[str, Any]


class EngineClient:
    """One engine (or the proxy) by its URL."""

    def __init__(
        self,
        name: str,
        url: str,
        model: str,
        *,
        timeout_s: float,
        api_key: str | None = None,
        dial: Callable[[str, int, float], Any] | None = None,
    ) -> None:
        """`dial(address, port, timeout_s)` opens the connections; without it they go out from here."""
        self.name, self.model = name, model
        self._url = urlsplit(url)
        self._timeout_s = timeout_s
        self._dial = dial
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    def complete(self, body: Mapping[str, Any], request_id: str | None = None) -> Answer:
        """Send a completion. Raises AskFailed."""
        headers = {"x-request-id": request_id} if request_id else {}
        data = self._json("POST", "/v1/completions", {"model": self.model, **body}, headers, self._timeout_s)
        try:
            return Answer(_token_ids(_first(data, "choices")), data)
        except (ValueError, TypeError):
            raise AskFailed(f"{self.name} answered HTTP 200 with something that is no completion") from None

    def metrics(self) -> Metrics:
        """Scrape /metrics; empty where there are none. Raises AskFailed if the engine is gone."""
        status, text = self._ask("GET", "/metrics", None, {}, min(_QUICK_S, self._timeout_s))
        return parse_metrics(text) if status == 200 else Metrics()

    def max_model_len(self) -> int | None:
        """Return the longest prompt plus answer, if the engine says it. Raises AskFailed."""
        data = self._json("GET", "/v1/models", None, {}, min(_QUICK_S, self._timeout_s))
        value = _first(data, "data").get("max_model_len")
        return value if isinstance(value, int) and value > 0 else None

    def wait_healthy(self, timeout_s: float) -> None:
        """Wait until /health says 200: a proxy may not have looked at a restarted engine yet. Raises AskFailed."""
        end = time.monotonic() + timeout_s
        while True:
            status, text = self._ask("GET", "/health", None, {}, min(_QUICK_S, self._timeout_s))
            if status == 200:
                return
            if time.monotonic() > end:
                raise AskFailed(f"{self.name} is not healthy: HTTP {status} {text[:200]}")
            time.sleep(0.05)

    def model_name(self) -> str:
        """Return the name under which the engine serves. Raises AskFailed."""
        data = self._json("GET", "/v1/models", None, {}, min(_QUICK_S, self._timeout_s))
        card = _first(data, "data")
        if not card.get("id"):
            raise AskFailed(f"{self.name} serves no model")
        return str(card["id"])

    def _json(self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> dict[str, Any]:
        status, text = self._ask(method, path, body, headers, timeout_s)
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if status != 200 or not isinstance(data, dict):
            error = data.get("error") if isinstance(data, dict) else None
            message = error.get("message") if isinstance(error, dict) else text[:200]
            raise AskFailed(f"{self.name} answered HTTP {status}: {message}", status)
        return data

    def _ask(self, method: str, path: str, body: Any, headers: Mapping[str, str], timeout_s: float) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port or 80, timeout=timeout_s)
        try:
            if self._dial is not None:
                connection.sock = self._dial(self._url.hostname or "", self._url.port or 80, timeout_s)
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"content-type": "application/json", **self._headers, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except TimeoutError:
            raise AskFailed(
                f"{self.name} did not answer within {timeout_s:g} s (its /health may still say 200)"
            ) from None
        except TransportError as error:
            raise AskFailed(f"{self.name} cannot be asked: {error.what}") from None
        except (OSError, http.client.HTTPException) as error:
            raise AskFailed(f"{self.name} cannot be asked: {error or type(error).__name__}") from None
        finally:
            connection.close()


def _first(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the first object of a list in an answer; empty where there is none: what answers may be no engine at all."""
    items = data.get(key)
    return items[0] if isinstance(items, list) and items and isinstance(items[0], dict) else {}


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...]:
    """Return a choice's tokens: from `token_ids` (vLLM 0.10.2 on), else from logprobs written as ids, else its text as one pseudo-token each.

    Raises ValueError or TypeError where they are no numbers.
    """
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return tuple(int(one) for one in ids)
    logprobs = choice.get("logprobs")
    names = logprobs.get("tokens") if isinstance(logprobs, dict) else None
    if isinstance(names, list) and names and all(isinstance(one, str) and one.startswith("token_id:") for one in names):
        return tuple(int(one.removeprefix("token_id:")) for one in names)
    return tuple(ord(character) for character in str(choice.get("text") or ""))
