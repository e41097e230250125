# The router, without engines and without Redis. The configuration is mounted at /etc/roundhouse/roundhouse.toml; it
# must say host = "0.0.0.0", since a container's loopback is reached from nowhere else.
#
# `docker build --target simulator` builds another image, a simulated engine for demonstrations.

FROM python:3.12-slim AS build
WORKDIR /src
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN python -m venv /app/venv
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY router router
COPY engines engines
# What runs for every request is compiled, with the tools that constraints.txt names.
ENV ROUNDHOUSE_COMPILE=1 PIP_CONSTRAINT=/src/constraints.txt
RUN /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM build AS build-simulator
COPY distributions distributions
RUN /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ./distributions/simulator

FROM python:3.12-slim AS runtime
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin roundhouse
ENV PATH=/app/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER roundhouse

FROM runtime AS simulator
COPY --from=build-simulator /app/venv /app/venv
EXPOSE 8000
ENTRYPOINT ["python", "-m", "engines.simulator", "--host", "0.0.0.0"]
CMD ["--model", "llama"]

FROM runtime
COPY --from=build /app/venv /app/venv
EXPOSE 8080

# Only where router.port is 8080. Unhealthy is a router of which no engine answers.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s CMD ["python", "-c", "import http.client; \
router = http.client.HTTPConnection('127.0.0.1', 8080, timeout=4); \
router.request('GET', '/healthz'); \
raise SystemExit(router.getresponse().status != 200)"]

ENTRYPOINT ["roundhouse", "serve", "--config", "/etc/roundhouse/roundhouse.toml"]
