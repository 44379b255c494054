# The image of `oncebridge serve` and `oncebridge consume`; deploy/container/README.md says how to run it.
# Both stages are of the same image: a virtual environment works only with the Python that made it.
ARG PYTHON=3.13
# Empty, or @sha256:...: `make images` asks the registry, and pins the images of compose.yaml too.
ARG PYTHON_DIGEST=

FROM python:${PYTHON}-slim-trixie${PYTHON_DIGEST} AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The secret "pip" is for whoever fetches packages from a mirror; without it there is no such file.
COPY requirements/run.txt requirements/container.txt requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --require-hashes --only-binary :all: -r requirements/run.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python -m venv --without-pip /opt/oncebridge && \
    pip --python /opt/oncebridge/bin/python install --require-hashes --only-binary :all: -r requirements/container.txt

# Last, so that a change in the code fetches nothing anew.
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-deps --no-build-isolation --no-index --wheel-dir dist . && \
    pip --python /opt/oncebridge/bin/python install --no-deps --no-index dist/*.whl
COPY deploy/container/health.py /opt/oncebridge/health.py

FROM python:${PYTHON}-slim-trixie${PYTHON_DIGEST}
LABEL org.opencontainers.image.title="Oncebridge" \
      org.opencontainers.image.description="Genesys Cloud events from EventBridge, each taking effect once" \
      org.opencontainers.image.licenses="Apache-2.0"

# A folder of its own for a ledger of SQLite, to mount a volume at. Nothing else is written but /tmp.
RUN install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /opt/oncebridge /opt/oncebridge

# Byte code is in the image; where there is none, as for handlers of your own, it could not be written.
ENV PATH=/opt/oncebridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    ONCEBRIDGE_SERVE_HOST=0.0.0.0

# Here oncebridge.toml and modules with handlers are looked for: mount them, or copy them in an image of your own.
WORKDIR /app
# In numbers: Kubernetes' runAsNonRoot cannot tell by a name.
USER 10001:10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --start-interval=1s \
    CMD ["python", "/opt/oncebridge/health.py"]
# Without a shell, so that signals reach it.
ENTRYPOINT ["oncebridge"]
CMD ["serve"]
