# python:3.11-bookworm: the slim one with what compiles extensions.
ARG BASE
FROM ${BASE}
RUN apt-get install -y --no-install-recommends gcc g++ python3-dev
