# A user's image that can install packages, for the end-to-end tests: Python with pip, and nothing of ours.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*
CMD ["python3"]
