FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE ./
COPY src src
RUN python -m venv /opt/pursuit \
    && /opt/pursuit/bin/pip install --no-cache-dir --constraint constraints.txt ".[models,postgres,schedule,search]"

FROM python:3.13-slim
LABEL org.opencontainers.image.title="Pursuit" \
      org.opencontainers.image.description="Runs missions over MCP servers until criteria that code can check are met." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --create-home --uid 10001 pursuit
COPY --from=build /opt/pursuit /opt/pursuit
ENV PATH="/opt/pursuit/bin:$PATH"
USER 10001
WORKDIR /home/pursuit
ENTRYPOINT ["pursuit"]
