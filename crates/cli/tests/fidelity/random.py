# Each line must differ between two runs, even where they are siblings.
import multiprocessing
import os
import random
import secrets
import ssl
import tempfile
import uuid

import numpy

print("random", random.random())
print("own generator", random.Random().random())
print("system", random.SystemRandom().random())
print("urandom", os.urandom(8).hex())
print("secrets", secrets.token_hex())
print("uuid1", uuid.uuid1())
print("uuid4", uuid.uuid4())
print("ssl", ssl.RAND_bytes(16).hex())
print("tempfile", tempfile.mktemp())
print("candidates", next(tempfile._get_candidate_names()))
print("numpy", numpy.random.random())
print("numpy generator", numpy.random.default_rng().random())
print("authkey", bytes(multiprocessing.current_process().authkey).hex())
print("lock name", multiprocessing.get_context("spawn").Lock()._semlock.name)
print("shuffled", random.sample(range(10**9), 4))
