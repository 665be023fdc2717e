"""Takes rigcanary's webhooks: verifies the signature, acts once an id.

pip install standardwebhooks; RIGCANARY_WEBHOOK_SECRET=whsec_… python receiver.py [PORT]
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["RIGCANARY_WEBHOOK_SECRET"])
seen: set[str] = set()  # keep this in your database: ids come again after restarts


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        raw = self.rfile.read(min(int(self.headers.get("Content-Length") or 0), 65_536))
        try:
            event = webhook.verify(raw, dict(self.headers.items()))
        except WebhookVerificationError as error:
            self.send_error(401, str(error))
            return
        if self.headers["webhook-id"] not in seen:
            print(event["type"], event["data"].get("device"), flush=True)  # act here
            seen.add(self.headers["webhook-id"])
        self.send_response(204)  # answer 2xx only once it is done, within 15 s
        self.end_headers()


HTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 8500), Handler).serve_forever()
