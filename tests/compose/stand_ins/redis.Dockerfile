# redis:7.2-bookworm, as far as the compose file asks for it: user, folder, programs.
ARG BASE
FROM ${BASE}
RUN apt-get update && apt-get install -y --no-install-recommends redis-server \
    && install -d -o redis -g redis /data
VOLUME /data
WORKDIR /data
CMD ["redis-server"]
