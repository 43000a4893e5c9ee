#!/usr/bin/env node
console.log("a first line", __filename)
