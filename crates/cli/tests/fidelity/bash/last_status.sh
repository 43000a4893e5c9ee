# each: true
# each: false
# each: (exit 7)
# each: nosuchcommand
# each: /etc/passwd
# each: ! true
# each: [[ a = b ]]
# each: (( 0 ))
# each: ls /nosuch
EACH
