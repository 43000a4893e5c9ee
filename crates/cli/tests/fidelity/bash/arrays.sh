a=(1 "2 3" 4); declare -A m=([x]=1 [y]="2 3")
echo "${#a[@]} ${a[1]} ${a[@]:1}"
echo "${m[y]}"; declare -p a m
unset "a[1]"; declare -p a
