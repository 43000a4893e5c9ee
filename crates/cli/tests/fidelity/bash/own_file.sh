cat "$0"
ls -l "$0" | cut -c1-10
wc -c < "${BASH_SOURCE[0]}"
cd /
head -1 "$0"
sed -n 2p "${BASH_SOURCE[0]}"
