#!/bin/bash -eu
false
echo "$-"
