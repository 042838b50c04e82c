"""Generate from any service with Celery: python examples/celery_client.py "$(./paceline status --redis-url)" """

import sys

from celery import Celery, chain

app = Celery(broker=sys.argv[1], backend=sys.argv[1])
fields = {"prompt": "Name three colours.", "max_tokens": 24}
task = app.send_task("paceline.generate", kwargs=fields)
print(task.get(timeout=120)["text"])

# In a chain, the result of one generation is the prompt of the next.
generate = app.signature("paceline.generate", kwargs={"max_tokens": 24})
result = chain(app.signature("paceline.generate", kwargs=fields), generate)()
print(result.get(timeout=120)["text"])
