"""Name every Redis key. No other module spells one; scripts get names as arguments.

An ended request dies after `ttl_s`, an active one after `active_ttl_s`. Scores are wall clock milliseconds at which
the member stops counting, so an index never outgrows what it points at.

    key (after the namespace)   type    holds                                         dies
    request:<id>                hash    record, status, owner, length, stats, ...     PX, see above
    events:<id>                 stream  the committed tokens, an entry a commit       with its request
    active                      zset    ids of requests not ended                     empty, <= limit
    owned:<owner>               zset    ids a verifier owns                           empty, or PX active_ttl
    unsettled                   zset    ids whose Celery task waits for its result    empty, scores
    ended:<id>                  list    one item once the request has ended           with its request
    settle:<id>                 string  a process is storing that result now          PX of the claim
    mail:<mailbox>              list    items waiting (hints, design D10)             empty, PX 10 min; 10,000
    attend:<mailbox>            string  the attendant, or "ringing"                   PX lease, PX 2 s
    waiting, waiting:high, :low list    requests of tasks that found no room          empty; 10,000
    mailboxes                   set     mailboxes that may hold items                 empty
    node:<kind>:<name>          hash    owner, node (JSON)                            PX lease
    nodes                       zset    <kind>:<name> with a lease                    empty, scores
    lease:<owner>               string  that the process `owner` lives                PX lease
    policy                      hash    version, policy (JSON)                        never; one small hash
    lock:<name>                 string  a tick or recovery is running                 PX of the lock
    sums:<group>                hash    calibration, priors, metrics: name -> sums    PX 30 days; 16,384 fields
    merged:<writer>:<group>     string  number of the writer's last batch in there    PX 10 min
    traced                      zset    timelines, by their last addition             empty; 64
    trace:<trace>               list    spans of work on one request                  PX 10 min; 1,024
    about:<trace>               hash    that request's progress                       PX 10 min
    held:<key>                  zset    an API key's requests that have not ended     PX active_ttl; <= its limit
    rates/...                   zset    when an API key asked (the library `limits`)  PX a minute
    samples                     list    the deployment's load, one a second           PX 1 hour; 900
    committed:1                 channel the events of each commit, as they are stored nothing is kept
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    namespace: str

    def request(self, request_id: str) -> str:
        return f"{self.namespace}:request:{request_id}"

    def events(self, request_id: str) -> str:
        """Name the commits: entries `<generated after>-0`, or `<generated>-1` if it only ends."""
        return f"{self.namespace}:events:{request_id}"

    @property
    def committed(self) -> str:
        """Name the channel of commits; another form of its messages needs another number: versions run side by side."""
        return f"{self.namespace}:committed:1"

    def ended(self, request_id: str) -> str:
        return f"{self.namespace}:ended:{request_id}"

    @property
    def active(self) -> str:
        return f"{self.namespace}:active"

    def owned(self, owner: str) -> str:
        return f"{self.namespace}:owned:{owner}"

    @property
    def unsettled(self) -> str:
        return f"{self.namespace}:unsettled"

    def settle(self, request_id: str) -> str:
        return f"{self.namespace}:settle:{request_id}"

    def mail(self, mailbox: str) -> str:
        return f"{self.namespace}:mail:{mailbox}"

    def attend(self, mailbox: str) -> str:
        return f"{self.namespace}:attend:{mailbox}"

    def waiting(self, priority: str) -> str:
        return f"{self.namespace}:waiting" + ("" if priority == "normal" else f":{priority}")

    @property
    def mailboxes(self) -> str:
        return f"{self.namespace}:mailboxes"

    def node(self, kind: str, name: str) -> str:
        return f"{self.namespace}:node:{kind}:{name}"

    @property
    def nodes(self) -> str:
        return f"{self.namespace}:nodes"

    def lease(self, owner: str) -> str:
        return f"{self.namespace}:lease:{owner}"

    @property
    def policy(self) -> str:
        return f"{self.namespace}:policy"

    def lock(self, name: str) -> str:
        return f"{self.namespace}:lock:{name}"

    def sums(self, group: str) -> str:
        return f"{self.namespace}:sums:{group}"

    def merged(self, writer: str, group: str) -> str:
        return f"{self.namespace}:merged:{writer}:{group}"

    @property
    def traced(self) -> str:
        return f"{self.namespace}:traced"

    def trace(self, trace: str) -> str:
        return f"{self.namespace}:trace:{trace}"

    def about(self, trace: str) -> str:
        return f"{self.namespace}:about:{trace}"

    def held(self, key: str) -> str:
        return f"{self.namespace}:held:{key}"

    @property
    def rates(self) -> str:
        return f"{self.namespace}:rates"

    @property
    def samples(self) -> str:
        return f"{self.namespace}:samples"
