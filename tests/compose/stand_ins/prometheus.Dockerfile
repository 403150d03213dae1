# prom/prometheus, as far as the compose file asks for it.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus wget \
    && install -d -o nobody -g nogroup /prometheus && install -d /etc/prometheus \
    && rm -rf /etc/prometheus/*
USER nobody
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["prometheus"]
