"""`vg serve`: a bank and its models, asked over HTTP.

`answers` computes, `worker` lets requests share batches, `app` maps both to HTTP, `guard` refuses
strangers, `run` listens, and `start` opens all of it.
"""
