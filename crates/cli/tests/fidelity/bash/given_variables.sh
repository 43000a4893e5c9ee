# env: A=plain
# env: DATABASE_URL=postgres://u:p@h/d?x='y'&z="w"
# env: DOLLAR=$HOME `id` \ !x * ~
# env: EMPTY=
# env: NODE_ENV=test
# env: UMLAUT=äöü 漢字 🎉
env
export -p
declare -p A DATABASE_URL DOLLAR EMPTY NODE_ENV UMLAUT
bash -c 'echo "$A|$DATABASE_URL|$DOLLAR|$EMPTY|$UMLAUT"'
unset A; env | grep -c '^A='
readonly EMPTY; EMPTY=1
