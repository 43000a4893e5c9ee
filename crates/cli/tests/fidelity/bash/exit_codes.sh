# each: 0
# each: 1
# each: 2
# each: 126
# each: 127
# each: 255
# each: 256
# each: -1
# each: x
echo before
exit EACH
