# syntax=docker/dockerfile:1
# The relay for production. PostgreSQL and Redis are elsewhere (docker-compose.yml has both), and no
# Valkey is inside. Runs as a user without rights; writes to /data and /tmp only.
ARG PYTHON=3.13-slim

FROM python:${PYTHON} AS packages
COPY requirements/base.lock /tmp/base.lock
RUN python -m venv /opt/relay \
    && /opt/relay/bin/pip install --no-cache-dir --disable-pip-version-check \
        --no-deps --require-hashes -r /tmp/base.lock

FROM python:${PYTHON}
RUN groupadd --gid 10001 relay \
    && useradd --uid 10001 --gid relay --no-create-home --home-dir /tmp --shell /usr/sbin/nologin relay \
    && install -d -o relay -g relay -m 700 /data
COPY --from=packages /opt/relay /opt/relay
ENV PATH=/opt/relay/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DATA_DIR=/data
WORKDIR /srv/relay
COPY manage.py pyproject.toml ./
COPY channels_app ./channels_app
COPY billing_app ./billing_app
COPY relay_app ./relay_app
COPY relayproject ./relayproject
# Now, since later the file system may be read-only. Static files need no collecting: WhiteNoise
# serves them from the packages.
RUN python -m compileall -q .
USER 10001:10001
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# SIGTERM, which `docker stop` sends, drains: give it more than RELAY_DRAIN_S, say `--time 45`.
CMD ["python", "manage.py", "serve", "--no-embedded", "--host", "0.0.0.0", "--port", "8000"]
