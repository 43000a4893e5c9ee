# stdin: "2\n"
select x in a b; do echo "$x $REPLY"; break; done
