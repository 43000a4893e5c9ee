s="Hello World"; echo "${s^^} ${s,,} ${s//o/0} ${s#* } ${s%% *} ${#s} ${s:2:3}"
echo {1..3} {a..c}{1,2}
touch a.txt b.txt; echo *.txt *.nosuch
shopt -s nullglob; echo *.nosuch
echo ~ ~root $HOME
printf "%q %s %05d %x\n" "a b" c 42 255
printf "%(%Y)T\n" 0
