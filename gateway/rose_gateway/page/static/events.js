// Server-sent events from a fetch: EventSource could not send the key.

/** Yields { id, data } for each whole event of an answer. */
export async function* eventsOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parsed(block);
        if (event.data !== "") yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => undefined); // it has ended by itself
  }
}

function parsed(block) {
  let id = null;
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) id = line.slice(4);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return { id, data: data.join("\n") };
}
