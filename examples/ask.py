"""Send one streamed completion and print the tokens as they come. Standard library only.

python examples/ask.py [URL] [PROMPT]
"""

from __future__ import annotations

import json
import sys
import urllib.request

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
PROMPT = sys.argv[2] if len(sys.argv) > 2 else "The KV cache of this prompt was computed by another process"


def main() -> None:
    """Ask for the model's name, then for a completion of PROMPT."""
    with urllib.request.urlopen(f"{URL}/v1/models", timeout=10) as answer:
        model = json.load(answer)["data"][0]["id"]
    body = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "stream": True}
    request = urllib.request.Request(
        f"{URL}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    print(f"{model}: {PROMPT} ->", end=" ", flush=True)
    with urllib.request.urlopen(request, timeout=60) as events:
        for line in events:
            if line.startswith(b"data: {"):
                print(json.loads(line[6:])["choices"][0]["text"], end="", flush=True)
    print()


if __name__ == "__main__":
    main()
