# The router, without engines and without Redis. The configuration is mounted at /etc/roundhouse/roundhouse.toml; it
# must set host = "0.0.0.0", since nothing outside of a container reaches its loopback address.
#
# `docker build --target simulator` builds another image, a simulated engine for demonstrations.

FROM python:3.12.12-slim-bookworm AS build
WORKDIR /src
# The versions are those of the image's Debian; none of them is in the last stage.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
# Two environments: what the router runs with, and what its wheel is built with. pip refuses a file whose hash differs.
COPY deploy/image/runtime.txt deploy/image/build.txt ./
RUN python -m venv /app/venv && \
    /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r runtime.txt
RUN python -m venv /build && \
    /build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r build.txt -r runtime.txt
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY router router
COPY engines engines
# What runs for every request is compiled. Nothing is downloaded from here on.
ENV ROUNDHOUSE_COMPILE=1
RUN /build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps -w /wheels . && \
    /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /wheels/*.whl

FROM build AS build-simulator
COPY distributions distributions
RUN /build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-build-isolation --no-deps -w /simulator ./distributions/simulator && \
    /app/venv/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index /simulator/*.whl

FROM python:3.12.12-slim-bookworm AS runtime
# A new volume at that folder gets its owner.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin roundhouse && \
    install -d -o roundhouse /var/lib/roundhouse
ENV PATH=/app/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# By number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 10001
STOPSIGNAL SIGTERM

FROM runtime AS simulator
COPY --from=build-simulator /app/venv /app/venv
EXPOSE 8000
ENTRYPOINT ["python", "-m", "engines.simulator", "--host", "0.0.0.0"]
CMD ["--model", "llama"]

FROM runtime
COPY --from=build /app/venv /app/venv
# For relative paths of the configuration.
WORKDIR /var/lib/roundhouse
EXPOSE 8080

# Set another port with ROUNDHOUSE_ROUTER_PORT: it overrides the configuration, and this check reads it too. A router is
# unhealthy while none of its engines is up.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s CMD ["python", "-c", "import http.client, os; \
port = int(os.environ.get('ROUNDHOUSE_ROUTER_PORT') or 8080); \
router = http.client.HTTPConnection('127.0.0.1', port, timeout=4); \
router.request('GET', '/healthz'); \
raise SystemExit(router.getresponse().status != 200)"]

ENTRYPOINT ["roundhouse", "serve", "--config", "/etc/roundhouse/roundhouse.toml"]
