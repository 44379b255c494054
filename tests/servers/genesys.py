"""Genesys Cloud's sign-in and analytics, as a server of this machine: it pages, lags and fails as its test says."""

import base64
import json
import random
import threading
from collections import Counter
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import genesys_day
import payloads

CLIENT, SECRET = "c1ient-0f-the-bridge", "a-secret-that-nobody-may-see-9f3a"
DETAILS = "/api/v2/analytics/conversations/details"


class Genesys:
    """What the server knows and does; a test changes it at any time."""

    def __init__(self):
        """Know of no conversation."""
        self.talks = []
        #: The time up to which data is complete.
        self.watermark_ms = genesys_day.BEGAN_MS + 24 * genesys_day.HOUR_MS
        #: What an interval is about: when conversations began, when they ended, that they overlap it, the days on which
        #: they began, or that they began on its days and overlap it.
        self.interval = "start"
        #: Whether pages move while they are read.
        self.moves = False
        #: How far off the number of hits is; None: it is not said.
        self.hits_off = 0
        #: How many conversations a page of a query has at most.
        self.page_max = 100
        #: How many calls a token is good for.
        self.calls_per_token = 1_000_000
        #: Call number -> what goes wrong with it: a status, "truncated", "cut", "slow" or "pause".
        self.faults = {}
        #: How many of the first jobs end without results, and after how many pages the next one's are gone.
        self.jobs_that_fail = 0
        self.pages_before_expiry = None
        #: Called before each answer with the number of the call.
        self.before = lambda number: None
        self.tokens = {}
        self.jobs = {}
        self.calls = 0
        self.signed_in = 0
        self.asked = Counter()
        self.problems = []
        self.lock = threading.Lock()
        self.dice = random.Random(7)

    # --- answers ------------------------------------------------------------------------------------

    def token(self, authorization):
        """Sign a client in."""
        if authorization != f"Basic {base64.b64encode(f'{CLIENT}:{SECRET}'.encode()).decode()}":
            return 401, {"error": "invalid_client", "description": "client credentials are invalid"}
        self.signed_in += 1
        token = f"token-{self.signed_in}-{'x' * 20}"
        self.tokens[token] = self.calls_per_token
        return 200, {"access_token": token, "token_type": "bearer", "expires_in": 86399}

    def in_interval(self, text):
        """Return the conversations of an interval."""
        first, last = (int(datetime.fromisoformat(part).timestamp() * 1000) for part in text.split("/"))
        if last - first > 31 * 24 * genesys_day.HOUR_MS:
            return None

        def is_in(talk):
            goes_on = talk.began_ms < last and talk.ended_ms >= first
            day_ms = 24 * genesys_day.HOUR_MS
            is_of_its_days = first // day_ms <= talk.began_ms // day_ms <= last // day_ms
            if self.interval in ("overlap", "days", "days and overlap"):
                return {"overlap": goes_on, "days": is_of_its_days}.get(self.interval, goes_on and is_of_its_days)
            return first <= (talk.began_ms if self.interval == "start" else talk.ended_ms) < last

        return sorted(filter(is_in, self.talks), key=lambda talk: talk.began_ms)

    def query(self, asked):
        """Answer a page of a query."""
        paging = asked["paging"]
        found = self.in_interval(asked["interval"])
        if found is None or not 1 <= paging["pageSize"] <= 100:
            return 400, {"message": "bad request"}
        if self.moves and found:
            turn = self.dice.randrange(len(found))
            found = found[turn:] + found[:turn]
        size = min(paging["pageSize"], self.page_max)
        start = (paging["pageNumber"] - 1) * size
        page = [talk.details for talk in found[start : start + size]]
        answer = {} if self.hits_off is None else {"totalHits": max(0, len(found) + self.hits_off)}
        return 200, {**answer, "conversations": page} if page else answer

    def new_job(self, asked):
        """Begin a job."""
        found = self.in_interval(asked["interval"])
        if found is None:
            return 400, {"message": "bad request"}
        job = f"job-{len(self.jobs) + 1}"
        self.jobs[job] = {"polls": 0, "found": found, "fails": len(self.jobs) < self.jobs_that_fail, "pages": 0}
        return 202, {"jobId": job}

    def job_state(self, job):
        """Tell how far a job is."""
        job["polls"] += 1
        states = ["QUEUED", "FAILED" if job["fails"] else "FULFILLED"]
        return 200, {"state": states[min(job["polls"] - 1, 1)]}

    def job_results(self, job, asked):
        """Answer a page of a job's results."""
        job["pages"] += 1
        if self.pages_before_expiry is not None and job["pages"] > self.pages_before_expiry:
            self.pages_before_expiry = None
            return 404, {"message": "job results have expired"}
        start, size = int(asked.get("cursor", ["0"])[0]), int(asked.get("pageSize", ["1000"])[0])
        page = [talk.details for talk in job["found"][start : start + size]]
        more = {"cursor": str(start + size)} if start + size < len(job["found"]) else {}
        return 200, {"conversations": page, "dataAvailabilityDate": payloads.iso(self.watermark_ms), **more}

    def answer(self, method, path, body, authorization):
        """Answer any call but the sign-in."""
        token = (authorization or "").removeprefix("Bearer ")
        with self.lock:
            left = self.tokens.get(token, 0)
            if left <= 0:
                return 401, {"message": "Invalid login credentials.", "code": "bad.credentials"}
            self.tokens[token] = left - 1
            parts = urlsplit(path)
            inside = parts.path.removeprefix(DETAILS)
            self.asked[inside.split("job-")[0] + ("results" if "results" in inside else "")] += 1
            if (method, inside) == ("GET", "/jobs/availability"):
                return 200, {"dataAvailabilityDate": payloads.iso(self.watermark_ms)}
            if (method, inside) == ("POST", "/query"):
                return self.query(json.loads(body))
            if (method, inside) == ("POST", "/jobs"):
                return self.new_job(json.loads(body))
            name = inside.removeprefix("/jobs/").removesuffix("/results")
            if method == "GET" and name in self.jobs:
                job = self.jobs[name]
                return self.job_results(job, parse_qs(parts.query)) if "results" in inside else self.job_state(job)
        return 404, {"message": "not found"}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Be quiet."""

    def do_GET(self):
        """Answer."""
        self._answer("GET", b"")

    def do_POST(self):
        """Answer."""
        self._answer("POST", self.rfile.read(int(self.headers.get("Content-Length", "0"))))

    def _answer(self, method, body):
        genesys = self.server.genesys
        if self.path == "/oauth/token":
            if body != b"grant_type=client_credentials":
                genesys.problems.append(f"sign-in with {body!r}")
            self._send(*genesys.token(self.headers.get("Authorization")))
            return
        with genesys.lock:
            genesys.calls += 1
            number = genesys.calls
        genesys.before(number)
        fault = genesys.faults.pop(number, None)
        if fault == "pause":
            self._send(429, {"message": "Rate limit exceeded"}, {"Retry-After": "1"})
        elif isinstance(fault, int):
            self._send(fault, {"message": "failed"})
        else:
            status, said = genesys.answer(method, self.path, body, self.headers.get("Authorization"))
            self._send(status, said, fault=fault)

    def _send(self, status, said, headers=None, fault=None):
        text = json.dumps(said).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        if fault == "cut":  # ended by the connection, so that nothing but its content shows that it is cut off
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if fault in ("truncated", "cut"):
            self.wfile.write(text[: len(text) // 2])
            self.close_connection = True
        elif fault == "slow":
            for at in range(0, len(text), max(1, len(text) // 8)):
                self.wfile.write(text[at : at + max(1, len(text) // 8)])
                self.wfile.flush()
                threading.Event().wait(0.02)
        else:
            self.wfile.write(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


@contextmanager
def running_genesys():
    """Run one on a free port; its address is `url`."""
    server = _Server(("127.0.0.1", 0), Handler)
    server.genesys = genesys = Genesys()
    genesys.url = f"http://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, args=(0.01,), name="genesys")
    serving.start()
    try:
        yield genesys
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    assert not genesys.problems
