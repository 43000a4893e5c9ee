for x in a1 b "" "*"; do case $x in [a-c]?) echo ab;; b) echo b;;& ""|b) echo e;; \*) echo star;; esac; done
