// Follows a stream to its end with the protocol's own client. Each piece is a line of JSON.
import { stream } from "@durable-streams/client"

const { URL, LIVE } = process.env

/** Reads on after `offset`. Resolves to where the next reader begins, null at the end. */
async function follow(offset) {
  const response = await stream({ url: URL, offset, live: LIVE })
  return new Promise((resolve) => {
    const read = (piece) => {
      console.log(JSON.stringify(piece))
      offset = piece.streamClosed ? null : piece.offset
      if (offset === null) resolve(null)
    }
    if (URL.endsWith("/events")) response.subscribeJson(read)
    else response.subscribeText(read)
    // A long poll goes on by itself when its connection breaks; an event stream ends.
    response.closed.catch(() => resolve(offset))
  })
}

let offset = "-1"
while (offset !== null) offset = await follow(offset)
