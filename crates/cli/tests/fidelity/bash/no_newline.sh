# lines: cut
echo last
