/* The server's API: JSON in, JSON out, and a Refusal with the server's own sentence where it says no. */

const SILENT = "the server does not answer; is it still running?";
const KEY = "dragoman-key"; // in this tab's storage

export class Refusal extends Error {
  constructor(message, status, { field = null, seconds = null } = {}) {
    super(message);
    Object.assign(this, { status, field, seconds }); // what it is about, and after how long to try again
  }
}

export function keepKey(key) {
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    kept = key;
  }
}

let kept = ""; // for a browser that keeps nothing for pages

function keyHeader() {
  let key = kept;
  try {
    key = sessionStorage.getItem(KEY) ?? kept;
  } catch {
    // as above
  }
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export const hasKey = () => "Authorization" in keyHeader();

/** GET, or POST where there is a body. Ends with an AbortError when `signal` says so. */
export async function ask(path, body, signal) {
  const head = { headers: { ...keyHeader() }, signal };
  if (body !== undefined) {
    Object.assign(head, { method: "POST", body: JSON.stringify(body) });
    head.headers["Content-Type"] = "application/json";
  }
  let response;
  let answer;
  try {
    response = await fetch(path, head);
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(response ? `the server answered with ${response.status} and no JSON` : SILENT, response?.status);
  }
  if (response.ok) return answer;
  const { message, field } = answer.error ?? {};
  const seconds = Number(response.headers.get("Retry-After")) || null;
  throw new Refusal(message ?? `the server answered with ${response.status}`, response.status, { field, seconds });
}
