[[ "key=val" =~ ^([a-z]+)=(.*)$ ]] && echo "${BASH_REMATCH[@]}"
[[ a < b ]] && echo less
[[ -f $0 && ! -d $0 ]] && echo file
