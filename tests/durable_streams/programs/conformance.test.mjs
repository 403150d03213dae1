// The conformance suite of the protocol, against the server that URL names.
import { runConformanceTests } from "@durable-streams/server-conformance-tests"

runConformanceTests({ baseUrl: process.env.URL, longPollTimeoutMs: 120_000 })
