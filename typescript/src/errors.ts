/** What this package throws. */
export class RoseError extends Error {
  override name = "RoseError";
}

/** What a gateway says about a failure: the `error` of its body. */
export interface ErrorFields {
  message: string;
  type?: string | null;
  param?: string | null;
  code?: string | number | null;
}

/** A gateway has refused a request. */
export class RequestFailed extends RoseError {
  override name = "RequestFailed";
  readonly type: string | undefined;
  readonly param: string | undefined;
  readonly code: string | undefined;

  constructor(
    readonly status: number,
    fields: ErrorFields,
    /** by which the gateway's log names the request */
    readonly requestId?: string,
  ) {
    super(fields.message);
    this.type = fields.type ?? undefined;
    this.param = fields.param ?? undefined;
    this.code = fields.code == null ? undefined : String(fields.code);
  }
}

/** The job has failed, or was cancelled: it has no more events. */
export class JobFailed extends RoseError {
  override name = "JobFailed";
  readonly type: string | undefined;
  readonly code: string | undefined;

  constructor(
    readonly jobId: string,
    fields: ErrorFields,
  ) {
    super(fields.message);
    this.type = fields.type ?? undefined;
    this.code = fields.code == null ? undefined : String(fields.code);
  }
}

/** No gateway has answered for as long as the client waits. The job, if there is one, goes on. */
export class GatewayUnreachable extends RoseError {
  override name = "GatewayUnreachable";
}
