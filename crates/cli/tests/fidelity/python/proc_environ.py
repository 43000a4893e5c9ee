# differs: /proc/self/environ
# env: ALPHA=first one
print(open("/proc/self/environ").read().split("\0"))
