hash
ls > /dev/null
hash
type ls echo if
