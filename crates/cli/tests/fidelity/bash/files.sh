ls
cat input.txt
mkdir -p d/e && mv input.txt d/e && find . | sort
