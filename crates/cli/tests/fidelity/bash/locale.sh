locale
x="äö"; echo ${#x} ${x^^}
printf "%s\n" ö z a | sort
