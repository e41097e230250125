"""Chats of a Zipf distribution for locust, which is no dependency of this project:

    locust -f benchmarks/locustfile.py --host http://127.0.0.1:8080 --headless --users 50 --run-time 1m

Each cache status has a row. The model is ROUNDHOUSE_MODEL, the key of the API OPENAI_API_KEY. It is a closed loop: a
user waits for its response, so a slow server is asked less. benchmarks/open_loop.py is an open one.
"""

import os
import random

from locust import HttpUser, constant_throughput, task

PROMPTS = range(1000)
WEIGHTS = [(rank + 1) ** -1.1 for rank in PROMPTS]


class Chat(HttpUser):
    """One chat per second."""

    wait_time = constant_throughput(1)

    @task
    def chat(self) -> None:
        (number,) = random.choices(PROMPTS, WEIGHTS)
        body = {
            "model": os.environ.get("ROUNDHOUSE_MODEL", "llama"),
            "messages": [{"role": "user", "content": f"Question {number}: what is the sea?"}],
            "max_tokens": 32,
        }
        headers = {"authorization": f"Bearer {key}"} if (key := os.environ.get("OPENAI_API_KEY")) else {}
        path = "/v1/chat/completions"
        with self.client.post(path, json=body, headers=headers, catch_response=True) as response:
            response.request_meta["name"] = f"{path} {response.headers.get('X-Cache', '')}"
