readonly r=1
r=2
echo "after $?"
f() { local r=3; }
f
echo after2
