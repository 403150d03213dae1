// API keys: the one that is used, and those that this tab or this browser remembers.

const USED = "rose-api-key";
const KNOWN = "rose-api-keys";

export function usedKey() {
  return sessionStorage.getItem(USED) ?? localStorage.getItem(USED) ?? "";
}

/** Whose conversations are shown; "" without a key. It is no secret: `rose keys list` shows it. */
export function keyId(secret = usedKey()) {
  return /^rose-([0-9a-f]{12})-/.exec(secret)?.[1] ?? (secret && "other");
}

export function knownKeys() {
  return [...new Set([sessionStorage, localStorage].flatMap((storage) => kept(storage)))];
}

/** `everywhere`: in all tabs, and tomorrow. "" is no key. */
export function useKey(secret, everywhere) {
  sessionStorage.setItem(USED, secret);
  if (everywhere) localStorage.setItem(USED, secret);
}

/** The used one is good: it can be chosen again. */
export function rememberKey() {
  const secret = usedKey();
  if (!secret || knownKeys().includes(secret)) return;
  const storage = localStorage.getItem(USED) === secret ? localStorage : sessionStorage;
  storage.setItem(KNOWN, JSON.stringify([...kept(storage), secret]));
}

export function forgetKey(secret) {
  for (const storage of [sessionStorage, localStorage]) {
    if (storage.getItem(USED) === secret) storage.removeItem(USED);
    storage.setItem(KNOWN, JSON.stringify(kept(storage).filter((one) => one !== secret)));
  }
}

function kept(storage) {
  return JSON.parse(storage.getItem(KNOWN) ?? "[]");
}
