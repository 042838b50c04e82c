"""Name every Redis key. No other module spells one; scripts get names as arguments."""

# An ended request dies after `ttl_s`, an active one after `active_ttl_s`. Scores are wall clock milliseconds at which
# the member stops counting, so an index never outgrows what it points at.
#
# key (after the namespace)   type    holds                                         dies
# request:<id>                hash    record, status, owner, length, stats, ...     PX, see above
# events:<id>                 stream  the committed tokens, an entry a commit       with its request
# active                      zset    ids of requests not ended                     empty, <= limit
# owned:<owner>               zset    ids a verifier owns                           empty, or PX active_ttl
# unsettled                   zset    ids whose Celery task waits for its result    empty, scores
# delivery:<id>               hash    owner that reads a task, deaths meanwhile     read, or PX 1 day
# ended:<id>                  list    one item once the request has ended           with its request
# settle:<id>                 string  a process is storing that result now          PX of the claim
# mail:<mailbox>              list    items waiting (hints, design D10)             empty, PX 10 min; 10,000
# attend:<mailbox>            string  the attendant, or "ringing"                   PX lease, PX 2 s
# waiting, waiting:high, :low list    requests of tasks that found no room          empty; 10,000
# mailboxes                   set     mailboxes that may hold items                 empty
# node:<kind>:<name>          hash    owner, node (JSON)                            PX lease
# nodes                       zset    <kind>:<name> with a lease                    empty, scores
# lease:<owner>               string  that the process `owner` lives                PX lease
# policy                      hash    version, policy (JSON)                        never; one small hash
# lock:<name>                 string  a tick or recovery is running                 PX of the lock
# sums:<group>                hash    metrics: name -> sums                         PX 30 days; 16,384 fields
# merged:<writer>:<group>     string  number of the writer's last batch in there    PX 10 min
# traced                      zset    timelines, by their last addition             empty; 64
# trace:<trace>               list    spans of work on one request                  PX 10 min; 1,024
# about:<trace>               hash    that request's progress                       PX 10 min
# held:<key>                  zset    an API key's requests that have not ended     PX active_ttl; <= its limit
# rates/...                   zset    when an API key asked (the library `limits`)  PX a minute
# samples                     list    the deployment's load, one a second           PX 1 hour; 900
# committed:1                 channel the events of each commit, as they are stored nothing is kept


class Keys:
    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        # Another form of the channel's messages needs another number: versions run side by side.
        self.committed = f"{namespace}:committed:1"
        self.active = f"{namespace}:active"
        self.unsettled = f"{namespace}:unsettled"
        self.mailboxes = f"{namespace}:mailboxes"
        self.nodes = f"{namespace}:nodes"
        self.policy = f"{namespace}:policy"
        self.traced = f"{namespace}:traced"
        self.rates = f"{namespace}:rates"
        self.samples = f"{namespace}:samples"

    def request(self, request_id: str) -> str:
        return f"{self.namespace}:request:{request_id}"

    def delivery(self, task_id: str) -> str:
        return f"{self.namespace}:delivery:{task_id}"

    def events(self, request_id: str) -> str:
        """Name the commits: entries `<generated after>-0`, or `<generated>-1` if it only ends."""
        return f"{self.namespace}:events:{request_id}"

    def ended(self, request_id: str) -> str:
        return f"{self.namespace}:ended:{request_id}"

    def owned(self, owner: str) -> str:
        return f"{self.namespace}:owned:{owner}"

    def settle(self, request_id: str) -> str:
        return f"{self.namespace}:settle:{request_id}"

    def mail(self, mailbox: str) -> str:
        return f"{self.namespace}:mail:{mailbox}"

    def attend(self, mailbox: str) -> str:
        return f"{self.namespace}:attend:{mailbox}"

    def waiting(self, priority: str) -> str:
        return f"{self.namespace}:waiting" + ("" if priority == "normal" else f":{priority}")

    def node(self, kind: str, name: str) -> str:
        return f"{self.namespace}:node:{kind}:{name}"

    def lease(self, owner: str) -> str:
        return f"{self.namespace}:lease:{owner}"

    def lock(self, name: str) -> str:
        return f"{self.namespace}:lock:{name}"

    def sums(self, group: str) -> str:
        return f"{self.namespace}:sums:{group}"

    def merged(self, writer: str, group: str) -> str:
        return f"{self.namespace}:merged:{writer}:{group}"

    def trace(self, trace: str) -> str:
        return f"{self.namespace}:trace:{trace}"

    def about(self, trace: str) -> str:
        return f"{self.namespace}:about:{trace}"

    def held(self, key: str) -> str:
        return f"{self.namespace}:held:{key}"
