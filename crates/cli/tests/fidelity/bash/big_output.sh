for i in {1..20000}; do echo "line $i of a long output"; done
printf "%0100000d\n" 1
