# The control plane's image: operator, api, exporter and the `stoker` command; what a container runs is its command.
# Holds the supervisor too, which an init container copies into workers. Build with `make images` (no registry needed),
# or from the repository's root: docker build .
#
# Layers: base | Python where the base has none, user | dependencies | ours. A change of ours builds the last one only.
# The machine's package mirrors come as build secrets (pip: pip.conf) and never reach a layer.
ARG BASE=docker.io/library/debian:trixie-slim

FROM ${BASE} AS python
RUN command -v python3 >/dev/null || { apt-get update \
      && apt-get install -y --no-install-recommends python3 \
      && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/* /var/log/*; }
RUN echo 'stoker:x:65532:65532:Stoker:/tmp:/usr/sbin/nologin' >>/etc/passwd \
    && echo 'stoker:x:65532:' >>/etc/group

# pip (`pip --python /opt/stoker/bin/python install …`) and the build backend.
FROM python AS tools
ARG HATCHLING=1.30
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    apt-get update && apt-get install -y --no-install-recommends python3-venv && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /build && /build/bin/pip install --no-cache-dir "hatchling~=${HATCHLING}" \
    && python3 -m venv --without-pip /opt/stoker

FROM tools AS requirements
WORKDIR /source
COPY pyproject.toml tools/images/requirements.py ./
RUN python3 requirements.py cluster >requirements.txt && python3 requirements.py --only stores >stores.txt

FROM tools AS ours
WORKDIR /source
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY operator/stoker operator/stoker
COPY api/stoker_api api/stoker_api
COPY trainer-image/stoker_job trainer-image/stoker_job
COPY trainer-image/stoker_worker trainer-image/stoker_worker
COPY trainer-image/stoker_trainer trainer-image/stoker_trainer
RUN /build/bin/pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir /wheel . \
    && /build/bin/pip --python /opt/stoker/bin/python install --no-deps --no-index --no-compile \
      --target /opt/stoker/app /wheel/*.whl \
    && rm -rf /opt/stoker/app/stoker_trainer \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/stoker/app

FROM tools AS dependencies
COPY constraints.txt /opt/stoker/constraints.txt
COPY --from=requirements /source/requirements.txt /opt/stoker/requirements.txt
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /build/bin/pip --python /opt/stoker/bin/python install --quiet --no-cache-dir --no-compile --only-binary :all: \
      -c /opt/stoker/constraints.txt -r /opt/stoker/requirements.txt \
    && site=$(/opt/stoker/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
    && echo /opt/stoker/app >"$site/stoker.pth" && find "$site" -type d -name tests -prune -exec rm -rf {} + \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site" \
    && ln -s ../app/bin/stoker /opt/stoker/bin/stoker

# What fetches jobs' data runs in an environment of its own, for s3fs wants another python-dateutil than the kubernetes
# package. It falls back on the one above: what both want alike is there once. Of botocore only S3 and its logins are kept.
FROM dependencies AS stores
COPY constraints-stores.txt ./
COPY --from=requirements /source/stores.txt ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv --without-pip /opt/stoker/fetch \
    && site=$(/opt/stoker/fetch/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
    && /opt/stoker/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/stoker.pth" \
    && echo /opt/stoker/app >>"$site/stoker.pth" \
    && sort -s -u -t= -k1,1 constraints-stores.txt /opt/stoker/constraints.txt >/tmp/constraints.txt \
    && /build/bin/pip --python /opt/stoker/fetch/bin/python install --quiet --no-cache-dir --no-compile --only-binary :all: \
      -c /tmp/constraints.txt -r stores.txt \
    && find "$site" -type d -name tests -prune -exec rm -rf {} + \
    && find "$site/botocore/data" -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name sts ! -name 'sso*' -exec rm -rf {} + \
    && python3 -m compileall -q -j 0 --invalidation-mode unchecked-hash "$site"

FROM python
COPY --from=dependencies /opt/stoker /opt/stoker
COPY --from=stores /opt/stoker/fetch /opt/stoker/fetch
COPY --from=ours /opt/stoker/app /opt/stoker/app
ENV PATH=/opt/stoker/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    HOME=/tmp USER=stoker LOGNAME=stoker PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
WORKDIR /
USER 65532:65532
CMD ["stoker", "--help"]
LABEL org.opencontainers.image.title="stoker" \
      org.opencontainers.image.description="Stoker's control plane: operator, api, exporter" \
      org.opencontainers.image.licenses="Apache-2.0"
