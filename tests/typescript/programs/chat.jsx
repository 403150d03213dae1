import { useChat } from "@ai-sdk/react";
import { createElement as h } from "react";
import { createRoot } from "react-dom/client";
import { RoseChatTransport } from "roseinfer/ai";

const { gateway, model } = document.body.dataset;
const transport = new RoseChatTransport({
  baseURL: gateway,
  model,
  parameters: { max_completion_tokens: 150 },
});

// What an application does with its messages: it keeps those that are whole.
const saved = JSON.parse(localStorage.getItem("messages") ?? "[]");

function Chat() {
  const { messages, sendMessage, status, stop, error } = useChat({
    id: "chat-1",
    messages: saved,
    resume: true,
    transport,
    onFinish: ({ messages }) => localStorage.setItem("messages", JSON.stringify(messages)),
  });
  const send = (text) => {
    const asked = { id: `ask-${messages.length}`, role: "user", parts: [{ type: "text", text }] };
    localStorage.setItem("messages", JSON.stringify([...messages, asked]));
    sendMessage(asked);
  };
  const textOf = ({ parts }) =>
    parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  return h(
    "main",
    {},
    h("p", { id: "status" }, status),
    h("p", { id: "error" }, error?.message ?? ""),
    messages.map((message) =>
      h("p", { key: message.id, className: message.role }, textOf(message)),
    ),
    h("button", { id: "stop", onClick: stop }, "stop"),
    h("form", {
      onSubmit: (event) => {
        event.preventDefault();
        send(event.target.elements.text.value);
        event.target.reset();
      },
    }, h("input", { name: "text", id: "text" })),
  );
}

createRoot(document.getElementById("root")).render(h(Chat));
