#!/usr/bin/env bash
# A first program: says where it runs, and as whom.
echo "Hello from bash $BASH_VERSION, process $$ of this sandbox."
echo "I am uid $(id -u) in $(pwd)."
unshare --user true 2>/dev/null || echo "I may not make a namespace."
