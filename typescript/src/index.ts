export {
  type ChatMessage,
  type ChatRequest,
  Rose,
  type SubmitOptions,
  type Tool,
} from "./client.js";
export {
  type ErrorFields,
  GatewayUnreachable,
  JobFailed,
  RequestFailed,
  RoseError,
} from "./errors.js";
export type { GatewayOptions } from "./gateways.js";
export {
  type Answer,
  type ChatChunk,
  type ChunkChoice,
  type FinishReason,
  Job,
  type JobEvent,
  type JobStatus,
  type ToolCall,
  type ToolCallDelta,
  type Usage,
} from "./job.js";
