for i in 1 2 3; do echo o$i; echo e$i >&2; done
