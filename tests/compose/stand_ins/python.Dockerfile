# python:3.11-slim-bookworm, from Debian's own packages and with this machine's way to packages.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends \
    python3-venv python3-pip ca-certificates \
    && ln -s python3 /usr/bin/python && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
COPY authorities.crt /etc/ssl/certs/ca-certificates.crt
COPY pip.conf /etc/pip.conf
CMD ["python"]
