// Takes rigcanary's webhooks: verifies the signature, acts once an id.
// npm install standardwebhooks; RIGCANARY_WEBHOOK_SECRET=whsec_… node receiver.mjs [PORT]
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { cwd, argv, env } from "node:process";

const { Webhook } = createRequire(`${cwd()}/`)("standardwebhooks");
const webhook = new Webhook(env.RIGCANARY_WEBHOOK_SECRET);
const seen = new Set(); // keep this in your database: ids come again after restarts

createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  let event;
  try {
    event = webhook.verify(Buffer.concat(chunks).toString(), request.headers);
  } catch (error) {
    response.writeHead(401).end(`${error.message}\n`);
    return;
  }
  const id = request.headers["webhook-id"];
  if (!seen.has(id)) {
    console.log(event.type, event.data.device ?? null); // act here
    seen.add(id);
  }
  response.writeHead(204).end(); // answer 2xx only once it is done, within 15 s
}).listen(Number(argv[2] ?? 8500), "127.0.0.1");
