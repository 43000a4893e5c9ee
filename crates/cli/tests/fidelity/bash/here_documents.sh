a=1
cat <<EOF
$a $(echo b) `echo c` \$d
EOF
cat <<'EOF'
$a $(echo b)
EOF
cat <<-EOF
	indented
	EOF
cat <<< "here $a"
cat <<A; cat <<B
a
A
b
B
